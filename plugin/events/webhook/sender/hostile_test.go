package sender

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/events/webhook"
)

// hang answers nothing until the sender gives up.
func hang(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

// flushed writes a part of an answer.
func flushed(w http.ResponseWriter, text string) error {
	if _, err := io.WriteString(w, text); err != nil {
		return err
	}
	return http.NewResponseController(w).Flush()
}

// rawServer accepts connections, reads a request of each, and gives it to serve.
func rawServer(t *testing.T, serve func(net.Conn)) (url string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = conn.Close() }()
				if _, err := http.ReadRequest(bufio.NewReader(conn)); err != nil {
					return // an answer before the request would be one to no request
				}
				serve(conn)
			}()
		}
	}()
	return "http://" + listener.Addr().String()
}

func TestNoReceiverHarmsOrDelaysAnother(t *testing.T) {
	w := newWorld(t)
	w.options.Times = Times{Connect: time.Minute, FirstByte: 4 * time.Second, Total: 5 * time.Second}
	w.restart()
	var metadata atomic.Int64
	secret := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { metadata.Add(1) }))
	t.Cleanup(secret.Close)
	untrusted := httptest.NewUnstartedServer(http.HandlerFunc(status(200)))
	untrusted.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	untrusted.StartTLS()
	t.Cleanup(untrusted.Close)
	receivers := map[string]struct{ url, fault string }{
		"redirects to metadata": {w.newReceiver(func(to http.ResponseWriter, r *http.Request) {
			http.Redirect(to, r, secret.URL+"/latest/meta-data/", http.StatusTemporaryRedirect)
		}).URL, "answered 307: redirects are not followed"},
		"hangs": {w.newReceiver(hang).URL, "did not answer in time"},
		"drips a head": {rawServer(t, func(c net.Conn) {
			for text := "HTTP/1.1 200 OK\r\nX: "; ; text = "x" {
				if _, err := io.WriteString(c, text); err != nil {
					return
				}
				time.Sleep(10 * time.Millisecond) // it drips
			}
		}), "did not answer in time"},
		"drips a body": {w.newReceiver(func(to http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				if flushed(to, "x") != nil {
					return
				}
				time.Sleep(10 * time.Millisecond) // it drips
			}
		}).URL, ""},
		"answers 10 MB": {w.newReceiver(func(to http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(to, strings.Repeat("x", 10<<20)) // the sender closes the connection
		}).URL, ""},
		"answers an endless head": {rawServer(t, func(c net.Conn) {
			for text := "HTTP/1.1 200 OK\r\n"; ; text = "X: " + strings.Repeat("x", 1000) + "\r\n" {
				if _, err := io.WriteString(c, text); err != nil {
					return
				}
			}
		}), "the request failed"},
		"resets": {rawServer(t, func(c net.Conn) {
			if tcp, ok := c.(*net.TCPConn); ok {
				_ = tcp.SetLinger(0)
			}
		}), "the connection was closed before the answer"},
		"speaks no HTTP":               {rawServer(t, func(c net.Conn) { _, _ = io.WriteString(c, "SSH-2.0-x\r\n") }), "the request failed"},
		"has a certificate of another": {untrusted.URL, "the TLS certificate is not valid"},
		"has no TLS":                   {strings.Replace(secret.URL, "http", "https", 1), "the TLS handshake failed"},
		"is down":                      {closedURL(t), "the connection was denied"},
	}
	ids := map[string]int64{}
	for name, r := range receivers {
		_, ids[name] = w.subscribe("of "+name, r.url)
		w.happen("of "+name, 1)
	}
	healthy := w.newReceiver(status(200))
	w.subscribe("acme", healthy.URL)
	w.happen("acme", 1)
	w.work()
	w.want(healthy, 1)
	for name, r := range receivers {
		assert.Equal(t, r.fault, w.hook(ids[name]).LastError, "a receiver that %s", name)
	}
	assert.Zero(t, metadata.Load(), "the sender followed a redirect")
	assert.NotContains(t, w.log.String(), "whsec_", "the log has a secret")
}

// closedURL returns the URL of a port on which nothing listens.
func closedURL(t *testing.T) string {
	t.Helper()
	s := httptest.NewServer(http.NotFoundHandler())
	s.Close()
	return s.URL
}

func TestAReceiverThatHangsDoesNotDelayTheOthers(t *testing.T) {
	w := newWorld(t)
	release := make(chan struct{})
	slow := w.newReceiver(func(http.ResponseWriter, *http.Request) { <-release })
	fast := w.newReceiver(status(200))
	w.subscribe("slow", slow.URL)
	w.subscribe("fast", fast.URL)
	w.happen("slow", 1)
	w.happen("fast", 1)
	for range 3 { // while the first request to slow runs
		_, err := w.session.round(t.Context())
		require.NoError(t, err)
		require.NoError(t, w.session.await(t.Context(), nil))
		w.happen("slow", 1)
		w.happen("fast", 1)
	}
	w.want(fast, 3)
	close(release)
	w.work()
	w.want(fast, 4)
	w.want(slow, 4)
}

func TestAddressesThatAreNotPublicAreDeniedWhenTheyAreDialed(t *testing.T) {
	w := newWorld(t)
	w.options.Targets.Private = nil
	w.restart()
	r := w.newReceiver(status(200))
	port := r.URL[strings.LastIndex(r.URL, ":"):]
	for i, host := range []string{"localhost", "localhost.localdomain", "127.0.0.1.nip.invalid"} {
		org := string(rune('a' + i))
		_, id := w.subscribe(org, "http://"+host+port)
		w.happen(org, 1)
		w.work()
		assert.Equal(t, (&webhook.AddressError{}).Error(), w.hook(id).LastError, "%s", host)
	}
	w.want(r, 0)
}

// A subscription that the command made may have a URL that the sender's flags do not allow.
func TestAURLThatTheFlagsDoNotAllowIsNotCalled(t *testing.T) {
	w := newWorld(t)
	w.options.Targets = webhook.Targets{Private: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}}
	w.restart()
	r := w.newReceiver(status(200))
	_, id := w.subscribe("acme", r.URL)
	w.happen("acme", 1)
	w.work()
	w.want(r, 0)
	assert.Contains(t, w.hook(id).LastError, "must begin with https://", "the error")
}

func TestNoProxyOfTheEnvironmentIsUsed(t *testing.T) {
	w := newWorld(t)
	proxy := w.newReceiver(status(200))
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"} {
		t.Setenv(name, proxy.URL)
	}
	w.restart()
	transport, ok := w.sender.client.Transport.(*http.Transport)
	if !ok || transport.Proxy != nil {
		t.Error("the client may use a proxy")
	}
}

func TestAnEndpointWithTLSIsVerifiedByTheRoots(t *testing.T) {
	w := newWorld(t)
	server := httptest.NewTLSServer(http.HandlerFunc(status(200)))
	t.Cleanup(server.Close)
	w.options.Roots = x509.NewCertPool()
	w.options.Roots.AddCert(server.Certificate())
	w.options.Targets.HTTP = false
	w.restart()
	_, id := w.subscribe("acme", server.URL)
	w.happen("acme", 1)
	w.work()
	if hook := w.hook(id); hook.LastError != "" || hook.DeliveredAt.IsZero() {
		t.Errorf("the webhook is %+v", hook)
	}
	if transport, ok := w.sender.client.Transport.(*http.Transport); !ok ||
		transport.TLSClientConfig.MinVersion != tls.VersionTLS12 || transport.TLSClientConfig.InsecureSkipVerify {
		t.Error("the client verifies less than it should")
	}
}
