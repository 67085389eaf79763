package kafka

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
)

// Options locates a Kafka and authenticates to it. Only Brokers is required.
type Options struct {
	Brokers []string // host:port of one or more; the others are found through them

	TLS      bool
	CAFile   string // PEM, read once; "": the system's authorities
	CertFile string // PEM of the client, read for every connection; "": no client certificate
	KeyFile  string

	SASL         string // PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512; "": none
	User         string
	PasswordFile string // read for every connection; line breaks at the end are ignored

	dial func(ctx context.Context, network, address string) (net.Conn, error) // nil: of the system; tests set it
}

// Setting is one setting of Options: a flag of the programs that send events.
type Setting struct {
	Name, Default, Usage string
	Set                  func(o *Options, text string) error // the error is without the name
}

// Settings returns the settings of o. The value none stands for no value.
func Settings() []Setting {
	return []Setting{
		{"kafka-brokers", "none", "the Kafka that events are sent to: the `addresses` (host:port) of its brokers, " +
			"separated by commas; none: send none", setBrokers},
		{"kafka-tls", "off", "`on`: connect to the brokers with TLS", setTLS},
		{
			"kafka-ca-file", "none", "a PEM `file` with the authorities of the brokers' certificates; none: the system's",
			setText(func(o *Options) *string { return &o.CAFile }),
		},
		{
			"kafka-cert-file", "none", "a PEM `file` with a client certificate, read for every connection",
			setText(func(o *Options) *string { return &o.CertFile }),
		},
		{
			"kafka-key-file", "none", "a PEM `file` with the private key of kafka-cert-file",
			setText(func(o *Options) *string { return &o.KeyFile }),
		},
		{"kafka-sasl", "none", "the `mechanism` to authenticate by: none, PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512", setSASL},
		{"kafka-user", "none", "the `user` of kafka-sasl", setText(func(o *Options) *string { return &o.User })},
		{
			"kafka-password-file", "none", "a `file` with the password of kafka-user, read for every connection",
			setText(func(o *Options) *string { return &o.PasswordFile }),
		},
	}
}

func setText(field func(*Options) *string) func(*Options, string) error {
	return func(o *Options, text string) error {
		*field(o) = given(text)
		return nil
	}
}

func given(text string) string {
	if text == "none" {
		return ""
	}
	return text
}

func setBrokers(o *Options, text string) error {
	o.Brokers = nil
	if text = given(text); text == "" {
		return nil
	}
	for broker := range strings.SplitSeq(text, ",") {
		host, port, err := net.SplitHostPort(strings.TrimSpace(broker))
		if err == nil {
			_, err = strconv.ParseUint(port, 10, 16)
		}
		if err != nil || host == "" {
			return errors.New("must be host:port of one broker or more, separated by commas, such as kafka-1:9092,kafka-2:9092")
		}
		o.Brokers = append(o.Brokers, net.JoinHostPort(host, port))
	}
	return nil
}

func setTLS(o *Options, text string) error {
	if text != "on" && text != "off" {
		return errors.New("must be on or off")
	}
	o.TLS = text == "on"
	return nil
}

var mechanisms = []string{"", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"}

func setSASL(o *Options, text string) error {
	if o.SASL = given(text); !slices.Contains(mechanisms, o.SASL) {
		return errors.New("must be none, PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512")
	}
	return nil
}

// ParseTopic parses the name of a topic.
func ParseTopic(text string, to *string) error {
	isInvalid := func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("._-", r)
	}
	if text == "" || text == "." || text == ".." || len(text) > 249 || strings.ContainsFunc(text, isInvalid) {
		return errors.New("must be the name of a topic: 1 to 249 letters, digits, dots, hyphens and underscores")
	}
	*to = text
	return nil
}

// Validate returns an error that names the setting at fault, and what to do. It reads the files.
func (o *Options) Validate() error {
	switch {
	case len(o.Brokers) == 0 && (o.TLS || o.CAFile != "" || o.CertFile != "" || o.KeyFile != "" || o.SASL != "" ||
		o.User != "" || o.PasswordFile != ""):
		return errors.New("kafka-brokers: give the brokers, because other settings of Kafka are given")
	case !o.TLS && (o.CAFile != "" || o.CertFile != "" || o.KeyFile != ""):
		return errors.New("kafka-tls: must be on where kafka-ca-file, kafka-cert-file or kafka-key-file is given")
	case (o.CertFile == "") != (o.KeyFile == ""):
		return errors.New("give kafka-cert-file and kafka-key-file together")
	case o.SASL == "" && (o.User != "" || o.PasswordFile != ""):
		return errors.New("kafka-sasl: give PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512 beside kafka-user")
	case o.SASL != "" && (o.User == "" || o.PasswordFile == ""):
		return errors.New("kafka-sasl: give kafka-user and kafka-password-file too")
	case o.SASL == "PLAIN" && !o.TLS:
		return errors.New("kafka-sasl: PLAIN sends the password unencrypted: set kafka-tls to on, or use SCRAM-SHA-512")
	}
	if o.SASL != "" {
		if _, err := o.password(); err != nil {
			return err
		}
	}
	if o.CertFile != "" {
		if _, err := o.certificate(nil); err != nil {
			return err
		}
	}
	_, err := o.tlsConfig()
	return err
}

// tlsConfig returns the TLS config of a client, or nil without TLS.
func (o *Options) tlsConfig() (*tls.Config, error) {
	if !o.TLS {
		return nil, nil
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if o.CertFile != "" {
		config.GetClientCertificate = o.certificate
	}
	if o.CAFile == "" {
		return config, nil
	}
	text, err := os.ReadFile(o.CAFile)
	if err != nil {
		return nil, fmt.Errorf("kafka-ca-file: %w", err)
	}
	config.RootCAs = x509.NewCertPool()
	if !config.RootCAs.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("kafka-ca-file: %s has no certificate in PEM", o.CAFile)
	}
	return config, nil
}

// certificate returns the client certificate as its files are now.
func (o *Options) certificate(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	pair, err := tls.LoadX509KeyPair(o.CertFile, o.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("kafka-cert-file %s, kafka-key-file %s: %w", o.CertFile, o.KeyFile, err)
	}
	return &pair, nil
}

func (o *Options) password() (string, error) {
	text, err := os.ReadFile(o.PasswordFile)
	if err != nil {
		return "", fmt.Errorf("kafka-password-file: %w", err)
	}
	password := strings.TrimRight(string(text), "\r\n")
	if password == "" {
		return "", fmt.Errorf("kafka-password-file: %s is empty", o.PasswordFile)
	}
	return password, nil
}
