package sender

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/events"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/events/webhook"
)

// Times bound the parts of a request. Zero values are the defaults.
type Times struct {
	Connect   time.Duration // to connect, and then for TLS: 5 s each
	FirstByte time.Duration // from the request to the head of the answer: 10 s
	Total     time.Duration // 15 s
}

// maxAnswerHead bounds the bytes of the head of an answer. Its body is not read.
const maxAnswerHead = 16 << 10

// newClient returns a client that connects to allowed addresses only, without proxies, and follows no redirects.
func newClient(targets *webhook.Targets, times Times, roots *x509.CertPool) *http.Client {
	dialer := net.Dialer{
		Timeout: times.Connect,
		// It is called with each address that a name resolves to, before the connection.
		Control: func(_, address string, _ syscall.RawConn) error { return targets.CheckAddress(address) },
	}
	return &http.Client{
		Timeout:       times.Total,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{
			Proxy:                  nil,
			DialContext:            dialer.DialContext,
			TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots},
			TLSHandshakeTimeout:    times.Connect,
			ResponseHeaderTimeout:  times.FirstByte,
			MaxResponseHeaderBytes: maxAnswerHead,
			DisableKeepAlives:      true, // each connection is checked
			DisableCompression:     true,
			TLSNextProto:           map[string]func(string, *tls.Conn) http.RoundTripper{}, // HTTP/1.1 only
		},
	}
}

type delivery struct {
	ID        string
	Webhook   int64
	Org       string
	URL       string
	Body      string
	Events    int32
	Tries     int32
	CreatedAt time.Time
	Failing   bool // the last try of its webhook failed
	Failures  int64
	Secrets   [][]byte
}

type outcome struct {
	*delivery
	status     int           // 0: there was no answer
	fault      string        // "": it was delivered
	retryAfter time.Duration // the receiver wants nothing before
}

func (s *Sender) post(ctx context.Context, d *delivery) outcome {
	o := outcome{delivery: d}
	answer, err := s.request(ctx, d)
	if err != nil {
		s.options.Log.Debug("a delivery to a webhook failed", "webhook", d.Webhook, "delivery", d.ID, "error", err)
		o.fault = faultText(err)
		return o
	}
	_ = answer.Body.Close() // its content does not matter
	o.status, o.retryAfter = answer.StatusCode, webhook.RetryAfter(answer.StatusCode, answer.Header, s.now())
	switch class := o.status / 100; class {
	case 2:
	case 3:
		o.fault = fmt.Sprintf("answered %d: redirects are not followed", o.status)
	default:
		o.fault = fmt.Sprintf("answered %d", o.status)
	}
	return o
}

func (s *Sender) request(ctx context.Context, d *delivery) (*http.Response, error) {
	if err := s.options.Targets.CheckURL(d.URL); err != nil {
		return nil, &urlError{err}
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, d.URL, strings.NewReader(d.Body))
	if err != nil {
		return nil, &urlError{errors.New("is malformed")}
	}
	secrets := make([]webhook.Secret, len(d.Secrets))
	for i, secret := range d.Secrets {
		secrets[i] = secret
	}
	at := s.now()
	for name, value := range map[string]string{
		"Content-Type":          events.BatchMediaType,
		"User-Agent":            "tenant-rate-limiting",
		webhook.HeaderID:        d.ID,
		webhook.HeaderTimestamp: fmt.Sprint(at.Unix()),
		webhook.HeaderSignature: webhook.Sign(d.ID, at, []byte(d.Body), secrets...),
	} {
		r.Header.Set(name, value)
	}
	return s.client.Do(r)
}

type urlError struct{ err error }

func (e *urlError) Error() string { return "the URL " + e.err.Error() }

// faultText returns why there was no answer, for the tenant: without addresses and names, which may be of a private
// network.
func faultText(err error) string {
	var (
		address *webhook.AddressError
		url     *urlError
		name    *net.DNSError
		cert    *tls.CertificateVerificationError
		record  tls.RecordHeaderError
		alert   tls.AlertError
		timeout net.Error
	)
	switch {
	case errors.As(err, &url):
		return url.Error()
	case errors.As(err, &address), errors.As(err, &name):
		return new(webhook.AddressError).Error()
	case errors.As(err, &timeout) && timeout.Timeout():
		return "did not answer in time"
	case errors.As(err, &cert):
		return "the TLS certificate is not valid"
	case errors.As(err, &record), errors.As(err, &alert), errors.Is(err, http.ErrSchemeMismatch):
		return "the TLS handshake failed"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "the connection was denied"
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE), errors.Is(err, io.EOF),
		errors.Is(err, io.ErrUnexpectedEOF):
		return "the connection was closed before the answer"
	}
	return "the request failed"
}
