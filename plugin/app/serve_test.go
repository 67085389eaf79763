package app

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/metrics"
)

// serveOf are the settings of a call of serve, or what is wrong with it.
func serveOf(t *testing.T, env map[string]string, line string) (*serveSettings, *call, error) {
	t.Helper()
	o := &operator{
		getenv: func(name string) string { return env[name] },
		stdout: screen{to: io.Discard}, stderr: screen{to: io.Discard},
	}
	c := &command{words: "serve"}
	var s *serveSettings
	c.define = func(c *call) action { s = c.serveFlags(); return nil }
	call := newCall(o, c)
	if err := call.parse(words(t, line)); err != nil {
		return nil, nil, err
	}
	for _, check := range call.checks {
		if err := check(); err != nil {
			return nil, nil, err
		}
	}
	return s, call, nil
}

func TestServeRefusesWhatNobodyShouldWant(t *testing.T) {
	for _, c := range []struct{ line, want string }{
		{"--listen 8090", "--listen: \"8090\": must be host:port"},
		{"--listen 127.0.0.1:http", "must be host:port"},
		{"--listen 0.0.0.0:8090", "other machines reach 0.0.0.0:8090"},
		{"--listen :8090", "other machines reach :8090"},
		{"--listen [::]:8090", "--insecure-http"},
		{"--listen api.internal:8090", "other machines reach api.internal:8090"},
		{"--tls-cert c.pem", "--tls-cert and --tls-key together"},
		{"--tls-key k.pem", "--tls-cert and --tls-key together"},
		{"--client-ca ca.pem", "--client-ca"},
		{"--tls-cert c.pem --tls-key k.pem --insecure-http", "either"},
		{"--lease-share 6", "a whole number from 0 to 5"},
		{"--max-addresses -1", "must be a whole number"},
		{"--new-addresses many", "must be a whole number"},
		{"--log-level loud", `--log-level: "loud": must be debug, info, warn or error`},
		{"--metrics-listen 127.0.0.1", `--metrics-listen: "127.0.0.1": must be host:port`},
		{"--metrics-listen 0.0.0.0:9543", "or set --metrics-allow-remote"},
		{"--shutdown-time soon", "must be a duration above 0"},
		{"--drain-time -1s", "must be a duration above 0"},
	} {
		if _, _, err := serveOf(t, nil, c.line); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.line, err, c.want)
		}
	}
}

func TestServeTakesAddressesOfThisMachineAsTheyAreAndOthersWithTLSOrOnRequest(t *testing.T) {
	for _, line := range []string{
		"", "--listen 127.0.0.1:0", "--listen localhost:8090", "--listen [::1]:8090", "--listen [::ffff:127.0.0.1]:8090",
		"--listen 0.0.0.0:8090 --insecure-http", "--listen :8443 --tls-cert c.pem --tls-key k.pem --client-ca ca.pem",
	} {
		if _, _, err := serveOf(t, nil, line); err != nil {
			t.Errorf("%q: %v", line, err)
		}
	}
}

func TestSettingsOfServeAreFlagsElseVariables(t *testing.T) {
	env := map[string]string{
		"RATELIMIT_LISTEN": "127.0.0.1:1", "RATELIMIT_LOG_LEVEL": "warn", "RATELIMIT_SHUTDOWN_TIME": "3s", "RATELIMIT_LEASE_SHARE": "0",
		"RATELIMIT_METRICS_LISTEN": "off", "RATELIMIT_DATABASE": "host=from-variable", "RATELIMIT_DATABASE_FILE": "/from/variable",
	}
	s, c, err := serveOf(t, env, "--listen 127.0.0.1:2")
	if err != nil {
		t.Fatal(err)
	}
	if s.listen != "127.0.0.1:2" || s.logLevel != slog.LevelWarn || s.shutdownTime != 3*time.Second || s.leaseShare != 0 || s.metricsListen != "" {
		t.Errorf("%+v", s)
	}
	if c.database.file != "/from/variable" || c.database.dsn != "" {
		t.Errorf("the database is %+v, want the file of the variable", c.database)
	}
	if _, c, err = serveOf(t, env, "--database host=from-flag"); err != nil || c.database.file != "" || c.database.dsn != "host=from-flag" {
		t.Errorf("the database is %+v (%v), want the flag's alone", c.database, err)
	}
	if _, _, err = serveOf(t, map[string]string{"RATELIMIT_DRAIN_TIME": "x", "RATELIMIT_INSECURE_HTTP": "perhaps"}, ""); err == nil ||
		!strings.Contains(err.Error(), "RATELIMIT_DRAIN_TIME") || !strings.Contains(err.Error(), `RATELIMIT_INSECURE_HTTP: "perhaps": must be true or false`) {
		t.Errorf("%v, want both variables named", err)
	}
}

// authority signs certificates for tests.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	dir  string
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t, dir: t.TempDir()}
	a.cert, a.key = a.sign("authority", nil)
	return a
}

// sign makes a certificate and writes it, with its key, to the files name.pem and name.key.
func (a *authority) sign(name string, by *authority) (*x509.Certificate, *ecdsa.PrivateKey) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	cert := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: by == nil, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	parent, signer := cert, key
	if by != nil {
		parent, signer = by.cert, by.key
	}
	der, err := x509.CreateCertificate(rand.Reader, cert, parent, &key.PublicKey, signer)
	if err != nil {
		a.t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	a.write(name+".pem", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	a.write(name+".key", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}))
	if cert, err = x509.ParseCertificate(der); err != nil {
		a.t.Fatal(err)
	}
	return cert, key
}

func (a *authority) file(name string) string { return filepath.Join(a.dir, name) }

func (a *authority) write(name string, text []byte) {
	a.t.Helper()
	if err := os.WriteFile(a.file(name), text, 0o600); err != nil {
		a.t.Fatal(err)
	}
}

func TestACertificateIsReadAgainWhenItsFilesChangeAndKeptWhileTheyCannotBe(t *testing.T) {
	a := newAuthority(t)
	first, _ := a.sign("server", a)
	files := tlsFiles{cert: a.file("server.pem"), key: a.file("server.key")}
	now := time.Now()
	k := &keyPair{files: files, log: slog.New(slog.DiscardHandler), now: func() time.Time { return now }}
	if err := k.read(); err != nil {
		t.Fatal(err)
	}
	served := func() *big.Int {
		t.Helper()
		now = now.Add(lookEvery)
		pair, err := k.get(nil)
		if err != nil {
			t.Fatal(err)
		}
		return pair.Leaf.SerialNumber
	}
	if got := served(); got.Cmp(first.SerialNumber) != 0 {
		t.Errorf("the certificate %v is served, want %v", got, first.SerialNumber)
	}
	age := func(file string, by time.Duration) {
		t.Helper()
		if err := os.Chtimes(a.file(file), now.Add(by), now.Add(by)); err != nil {
			t.Fatal(err)
		}
	}
	a.write("server.pem", []byte("half of it"))
	age("server.pem", time.Minute)
	if got := served(); got.Cmp(first.SerialNumber) != 0 || !k.warned {
		t.Errorf("the certificate %v is served while the file is broken, warned: %v", got, k.warned)
	}
	second, _ := a.sign("server", a)
	age("server.pem", 2*time.Minute)
	age("server.key", 2*time.Minute)
	if got := served(); got.Cmp(second.SerialNumber) != 0 || k.warned {
		t.Errorf("the certificate %v is served, want the new one %v", got, second.SerialNumber)
	}
}

func TestWithAClientAuthorityOnlyItsClientsGetThrough(t *testing.T) {
	a := newAuthority(t)
	a.sign("server", a)
	a.sign("client", a)
	config, err := tlsFiles{cert: a.file("server.pem"), key: a.file("server.key"), clientCA: a.file("authority.pem")}.config(slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	listener, err := tls.Listen("tcp", "127.0.0.1:0", config)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{
		Handler:  http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }),
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError), ReadHeaderTimeout: time.Minute,
	}
	go func() { _ = server.Serve(listener) }() // until it is closed
	defer server.Close()
	pair, err := tls.LoadX509KeyPair(a.file("client.pem"), a.file("client.key"))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(a.cert)
	for _, c := range []struct {
		own     []tls.Certificate
		through bool
	}{{nil, false}, {[]tls.Certificate{pair}, true}} {
		transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: c.own, MinVersion: tls.VersionTLS12}}
		response, err := (&http.Client{Transport: transport}).Get("https://" + listener.Addr().String())
		if err == nil {
			response.Body.Close()
		}
		if (err == nil) != c.through {
			t.Errorf("with %d certificates: %v, want it through: %v", len(c.own), err, c.through)
		}
		transport.CloseIdleConnections()
	}
}

func TestFilesThatAreNoCertificatesAreNamed(t *testing.T) {
	a := newAuthority(t)
	a.sign("server", a)
	a.write("empty.pem", nil)
	for _, f := range []tlsFiles{
		{cert: a.file("nowhere.pem"), key: a.file("server.key")},
		{cert: a.file("empty.pem"), key: a.file("server.key")},
		{cert: a.file("server.pem"), key: a.file("authority.key")},
		{cert: a.file("server.pem"), key: a.file("server.key"), clientCA: a.file("empty.pem")},
	} {
		if _, err := f.config(slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), a.dir) {
			t.Errorf("%+v: %v, want the file named", f, err)
		}
	}
}

func TestADrainingServerAnswersAndSendsItsClientsAway(t *testing.T) {
	monitor, err := metrics.NewServer(metrics.ServerOptions{Metrics: metrics.New("1", metrics.Sources{}), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{ReadHeaderTimeout: time.Minute, WriteTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusNoContent)
	})}
	d := newDraining(server, monitor, slog.New(slog.DiscardHandler))
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = server.Serve(listener) }() // until it is closed
	defer server.Close()
	ask := func(path string) (status int, closes bool) {
		t.Helper()
		response, err := http.Get("http://" + listener.Addr().String() + path)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		return response.StatusCode, response.Close
	}
	if status, closes := ask("/readyz"); status != http.StatusNoContent || closes {
		t.Errorf("before, /readyz answers %d, closes %v", status, closes)
	}
	d.begun.Store(true)
	if status, closes := ask("/readyz"); status != http.StatusServiceUnavailable || !closes {
		t.Errorf("while it drains /readyz answers %d, closes %v", status, closes)
	}
	if status, closes := ask("/other"); status != http.StatusNoContent || !closes {
		t.Errorf("while it drains a request is answered by %d, closes %v", status, closes)
	}
}

func TestATakenPortIsToldAloneWithoutNumbersOfAProcessThatNeverServed(t *testing.T) {
	stranger, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer stranger.Close()
	x := &terminal{t: t, env: map[string]string{databaseVariable: nowhere}}
	code := x.call("serve", "--listen", stranger.Addr().String(), "--metrics-listen", "off", "--log-level", "info")
	said := strings.TrimSpace(x.output.String())
	last := said[strings.LastIndex(said, "\n")+1:]
	if code != exitFailed || !strings.HasPrefix(last, "ratelimit serve: --listen: ") || !strings.Contains(last, stranger.Addr().String()) {
		t.Errorf("exit code %d, the last line is %s; want the address that is taken", code, last)
	}
	if strings.Contains(said, "last numbers") {
		t.Errorf("said numbers before the reason:\n%s", said)
	}
}
