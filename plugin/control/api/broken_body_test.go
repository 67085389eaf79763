package api_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
)

// sawAnswer signals the end of each request.
type sawAnswer struct {
	http.Handler
	ended chan struct{}
}

func (s sawAnswer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	defer func() { s.ended <- struct{}{} }()
	s.Handler.ServeHTTP(w, r)
}

// codes returns how many requests were answered with each status code.
func codes(t *testing.T, registry *prometheus.Registry) map[string]int {
	t.Helper()
	families, err := registry.Gather()
	require.NoError(t, err)
	all := map[string]int{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			for _, label := range m.GetLabel() {
				if f.GetName() == "rate_limiter_control_requests_total" && label.GetName() == "code" {
					all[label.GetValue()] += int(m.GetCounter().GetValue())
				}
			}
		}
	}
	return all
}

func TestAnIncompleteBodyIsAFaultOfTheClient(t *testing.T) {
	t.Parallel()
	const long = "Content-Length: 100\r\n\r\n"
	chunk := fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n", 20_000, strings.Repeat(" ", 20_000))
	for name, test := range map[string]struct {
		rest   string // of the request, from its length on
		closes bool   // without reading the answer
	}{
		"shorter than its length":       {long + `{"org`, false},
		"without a byte":                {long, false},
		"a chunk of no size":            {"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n", false},
		"without a last chunk":          {"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n", false},
		"broken where it is long":       {chunk + "zz\r\n", false},
		"a connection that is cut off":  {long + `{"org`, true},
		"one cut off in a long body":    {chunk, true},
		"one cut off in a longer batch": {"Content-Length: 900000\r\n\r\n" + strings.Repeat(" ", 40_000), true},
	} {
		for _, path := range []string{checkPath, batchPath, policies} {
			if strings.Contains(name, "batch") && path != batchPath {
				continue
			}
			t.Run(name+" "+path, func(t *testing.T) {
				t.Parallel()
				registry := prometheus.NewRegistry()
				w := equipped(t, func(o *api.Options) { o.Metrics = registry })
				ended := make(chan struct{}, 1)
				server := httptest.NewTLSServer(sawAnswer{w.server, ended})
				t.Cleanup(server.Close)
				connection := dialTLS(t, server)
				head := "POST " + path + " HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n" +
					"Authorization: Bearer " + admin + "\r\n"
				if _, err := io.WriteString(connection, head+test.rest); err != nil {
					t.Fatal(err)
				}
				if test.closes {
					if err := connection.NetConn().Close(); err != nil { // no end of TLS
						t.Fatal(err)
					}
				} else if err := connection.CloseWrite(); err != nil {
					t.Fatal(err)
				}
				<-ended
				if got := codes(t, registry); got["400"] != 1 || len(got) != 1 {
					t.Errorf("requests by their codes are %v, want one of 400", got)
				}
				if test.closes {
					return
				}
				response, err := http.ReadResponse(bufio.NewReader(connection), nil)
				require.NoError(t, err)
				defer response.Body.Close()
				body, err := io.ReadAll(response.Body)
				if err != nil || response.StatusCode != http.StatusBadRequest || !strings.Contains(string(body), "body") {
					t.Errorf("answered %d %s (%v), want 400 and what is wrong", response.StatusCode, body, err)
				}
			})
		}
	}
}

func TestABodyThatIsSentTooSlowlyIsAnswered(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ sent, length int }{
		"short": {10, 900_000}, "long": {20_000, 900_000}, "longer": {400_000, 900_000},
		"with a rest that net/http reads before it answers": {20_000, 60_000},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewTLSServer(equipped(t, func(*api.Options) {}).server)
			t.Cleanup(server.Close)
			connection := dialTLS(t, server)
			request := "POST " + batchPath + " HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n" +
				"Authorization: Bearer " + admin + fmt.Sprintf("\r\nContent-Length: %d\r\n\r\n", c.length) +
				strings.Repeat(" ", c.sent)
			if _, err := io.WriteString(connection, request); err != nil {
				t.Fatal(err)
			}
			response, err := http.ReadResponse(bufio.NewReader(connection), nil)
			require.NoError(t, err)
			defer response.Body.Close()
			if response.StatusCode != http.StatusRequestTimeout {
				t.Errorf("answered %d, want 408", response.StatusCode)
			}
		})
	}
}

func dialTLS(t *testing.T, server *httptest.Server) *tls.Conn {
	t.Helper()
	roots := server.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
	dialer := tls.Dialer{NetDialer: &net.Dialer{}, Config: &tls.Config{RootCAs: roots, ServerName: "example.com"}}
	connection, err := dialer.DialContext(context.Background(), "tcp", server.Listener.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { _ = connection.Close() })
	return connection.(*tls.Conn)
}
