//go:build !nokafka

package kafka

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/events"
)

// parse returns the options of pairs of a setting and its value, as a program reads them.
func parse(t *testing.T, pairs ...string) (o Options, err error) {
	t.Helper()
	for _, s := range Settings() {
		text := s.Default
		for i := 0; i < len(pairs); i += 2 {
			if pairs[i] == s.Name {
				text = pairs[i+1]
			}
		}
		if err := s.Set(&o, text); err != nil {
			return o, err
		}
	}
	return o, o.Validate()
}

// write writes a file, and returns its path.
func write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func TestAWrongSettingIsNamedWithTheFix(t *testing.T) {
	t.Parallel()
	password, missing := write(t, "password", "secret\n"), filepath.Join(t.TempDir(), "missing")
	for want, pairs := range map[string][]string{
		"must be host:port": {"kafka-brokers", "kafka-1"},
		"must be host:port of one broker or more, separated": {"kafka-brokers", "kafka-1:9092,:9092"},
		"must be on or off":                  {"kafka-tls", "true"},
		"must be none, PLAIN, SCRAM-SHA-256": {"kafka-sasl", "GSSAPI"},
		"kafka-brokers: give the brokers":    {"kafka-tls", "on"},
		"kafka-tls: must be on":              {"kafka-brokers", "k:9092", "kafka-ca-file", password},
		"kafka-cert-file and kafka-key-file together": {
			"kafka-brokers", "k:9092", "kafka-tls", "on", "kafka-cert-file", password,
		},
		"kafka-sasl: give PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512": {"kafka-brokers", "k:9092", "kafka-user", "u"},
		"kafka-sasl: give kafka-user and kafka-password-file": {
			"kafka-brokers", "k:9092", "kafka-sasl", "SCRAM-SHA-256", "kafka-user", "u",
		},
		"kafka-sasl: PLAIN sends the password unencrypted: set kafka-tls to on": {
			"kafka-brokers", "k:9092", "kafka-sasl", "PLAIN", "kafka-user", "u", "kafka-password-file", password,
		},
		"kafka-password-file: open " + missing: {
			"kafka-brokers", "k:9092", "kafka-sasl", "SCRAM-SHA-512", "kafka-user", "u", "kafka-password-file", missing,
		},
		"is empty": {
			"kafka-brokers", "k:9092", "kafka-sasl", "SCRAM-SHA-512", "kafka-user", "u",
			"kafka-password-file", write(t, "empty", "\n"),
		},
		"kafka-ca-file: open " + missing: {"kafka-brokers", "k:9092", "kafka-tls", "on", "kafka-ca-file", missing},
		"has no certificate in PEM":      {"kafka-brokers", "k:9092", "kafka-tls", "on", "kafka-ca-file", password},
		"kafka-cert-file " + password: {
			"kafka-brokers", "k:9092", "kafka-tls", "on", "kafka-cert-file", password, "kafka-key-file", password,
		},
	} {
		if _, err := parse(t, pairs...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error is %v, want %q", pairs, err, want)
		}
	}
	for _, pairs := range [][]string{{}, {"kafka-brokers", "k-1:9092, [::1]:9092"}} {
		_, err := parse(t, pairs...)
		assert.NoError(t, err, "%q", pairs)
	}
}

func TestTheNameOfATopicIsChecked(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"", ".", "..", "a b", "a\n", "ä", "a/b", strings.Repeat("x", 250)} {
		var to string
		if err := ParseTopic(name, &to); err == nil || !strings.Contains(err.Error(), "1 to 249") {
			t.Errorf("%q: error is %v", name, err)
		}
	}
	var to string
	if err := ParseTopic("Rate_limit-1.denials", &to); err != nil || to != "Rate_limit-1.denials" {
		t.Errorf("%q, %v", to, err)
	}
}

// keys is an authority in files, with a certificate that it has signed.
type keys struct{ ca, cert, key string }

func newKeys(t *testing.T) keys {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	model := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "kafka"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, model, model, &key.PublicKey, key)
	require.NoError(t, err)
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	inPEM := func(name, kind string, bytes []byte) string {
		return write(t, name, string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: bytes})))
	}
	cert := inPEM("cert.pem", "CERTIFICATE", der)
	return keys{cert, cert, inPEM("key.pem", "PRIVATE KEY", secret)}
}

func TestAProducerAuthenticatesByCertificateAndPassword(t *testing.T) {
	t.Parallel()
	k := newKeys(t)
	server, err := (&Options{TLS: true, CAFile: k.ca}).tlsConfig()
	require.NoError(t, err)
	pair, err := tls.LoadX509KeyPair(k.cert, k.key)
	require.NoError(t, err)
	server = &tls.Config{
		Certificates: []tls.Certificate{pair}, ClientCAs: server.RootCAs, ClientAuth: tls.RequireAndVerifyClientCert,
	}
	for _, mechanism := range []string{"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"} {
		cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, topic), kfake.TLS(server),
			kfake.EnableSASL(), kfake.Superuser(mechanism, "limiter", "new secret"))
		require.NoError(t, err)
		t.Cleanup(cluster.Close)
		password := write(t, "password", "old secret\n")
		o, err := parse(t, "kafka-brokers", cluster.ListenAddrs()[0], "kafka-tls", "on", "kafka-ca-file", k.ca,
			"kafka-cert-file", k.cert, "kafka-key-file", k.key,
			"kafka-sasl", mechanism, "kafka-user", "limiter", "kafka-password-file", password)
		require.NoError(t, err)
		p, err := New(o, topic)
		require.NoError(t, err)
		t.Cleanup(p.Close)
		batch := []events.Event{event("first", "acme")}
		// The password is wrong until its file changes.
		for err = errPending; err == nil || !strings.Contains(err.Error(), "SASL"); {
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			err = p.Send(ctx, batch)
			cancel()
			require.Error(t, err, "%s: sent with a wrong password", mechanism)
		}
		require.NoError(t, os.WriteFile(password, []byte("new secret\r\n"), 0o600))
		sendUntil(t, p, batch)
	}
}

// sendUntil sends a batch until it is stored. Go test's timeout ends it.
func sendUntil(t *testing.T, p *Producer, batch []events.Event) {
	t.Helper()
	for {
		err := p.Send(t.Context(), batch)
		if err == nil {
			return
		}
		if _, never := err.(*Unsent).Left(); len(never) > 0 {
			t.Fatal(err)
		}
	}
}

func TestAnAuthorityThatDidNotSignTheBrokerIsNamedAsTheFault(t *testing.T) {
	t.Parallel()
	broker, other := newKeys(t), newKeys(t)
	pair, err := tls.LoadX509KeyPair(broker.cert, broker.key)
	require.NoError(t, err)
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, topic),
		kfake.TLS(&tls.Config{Certificates: []tls.Certificate{pair}}))
	require.NoError(t, err)
	t.Cleanup(cluster.Close)
	o, err := parse(t, "kafka-brokers", cluster.ListenAddrs()[0], "kafka-tls", "on", "kafka-ca-file", other.ca)
	require.NoError(t, err)
	p, err := New(o, topic)
	require.NoError(t, err)
	t.Cleanup(p.Close)
	for err = errPending; !strings.Contains(err.Error(), "x509: certificate signed by unknown authority"); {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		err = p.Send(ctx, []events.Event{event("first", "acme")})
		cancel()
		require.Error(t, err, "sent to a broker of another authority")
	}
}
