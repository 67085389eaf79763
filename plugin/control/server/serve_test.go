package server

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/freeport"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/envoy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/observe/metrics"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

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

// sign creates a certificate, and writes it and its key to name.pem and name.key.
func (a *authority) sign(name string, by *authority) (*x509.Certificate, *ecdsa.PrivateKey) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(a.t, err)
	cert := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore:   time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: by == nil,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	parent, signer := cert, key
	if by != nil {
		parent, signer = by.cert, by.key
	}
	der, err := x509.CreateCertificate(rand.Reader, cert, parent, &key.PublicKey, signer)
	require.NoError(a.t, err)
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(a.t, err)
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
	require.NoError(a.t, os.WriteFile(a.file(name), text, 0o600))
}

func TestACertificateIsReloadedWhenItsFilesChangeAndKeptIfThatFails(t *testing.T) {
	a := newAuthority(t)
	first, _ := a.sign("server", a)
	files := TLSFiles{Cert: a.file("server.pem"), Key: a.file("server.key")}
	now := time.Now()
	k := &keyPair{files: files, log: slog.New(slog.DiscardHandler), now: func() time.Time { return now }}
	require.NoError(t, k.read())
	served := func() *big.Int {
		t.Helper()
		now = now.Add(lookEvery)
		pair, err := k.get(nil)
		require.NoError(t, err)
		return pair.Leaf.SerialNumber
	}
	if got := served(); got.Cmp(first.SerialNumber) != 0 {
		t.Errorf("the certificate %v is served, want %v", got, first.SerialNumber)
	}
	a.write("server.pem", []byte("half of it"))
	if got := served(); got.Cmp(first.SerialNumber) != 0 || !k.warned {
		t.Errorf("the certificate %v is served while the file is broken, warned: %v", got, k.warned)
	}
	second, _ := a.sign("server", a)
	if got := served(); got.Cmp(second.SerialNumber) != 0 || k.warned {
		t.Errorf("the certificate %v is served, want the new one %v", got, second.SerialNumber)
	}
}

func TestWithAClientAuthorityOnlyItsClientsConnect(t *testing.T) {
	a := newAuthority(t)
	a.sign("server", a)
	a.sign("client", a)
	config, err := TLSFiles{
		Cert: a.file("server.pem"), Key: a.file("server.key"), ClientCA: a.file("authority.pem"),
	}.config(slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	listener, err := tls.Listen("tcp", "127.0.0.1:0", config)
	require.NoError(t, err)
	server := &http.Server{
		Handler:  http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }),
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError), ReadHeaderTimeout: time.Minute,
	}
	go func() { _ = server.Serve(listener) }() // until it is closed
	defer server.Close()
	pair, err := tls.LoadX509KeyPair(a.file("client.pem"), a.file("client.key"))
	require.NoError(t, err)
	roots := x509.NewCertPool()
	roots.AddCert(a.cert)
	for _, c := range []struct {
		certificates []tls.Certificate
		connects     bool
	}{{nil, false}, {[]tls.Certificate{pair}, true}} {
		transport := &http.Transport{TLSClientConfig: &tls.Config{
			RootCAs: roots, Certificates: c.certificates, MinVersion: tls.VersionTLS12,
		}}
		response, err := (&http.Client{Transport: transport}).Get("https://" + listener.Addr().String())
		if err == nil {
			response.Body.Close()
		}
		if (err == nil) != c.connects {
			t.Errorf("with %d certificates: %v, want a connection: %v", len(c.certificates), err, c.connects)
		}
		transport.CloseIdleConnections()
	}
}

func TestErrorsOfCertificatesNameTheFile(t *testing.T) {
	a := newAuthority(t)
	a.sign("server", a)
	a.write("empty.pem", nil)
	for _, f := range []TLSFiles{
		{Cert: a.file("nowhere.pem"), Key: a.file("server.key")},
		{Cert: a.file("empty.pem"), Key: a.file("server.key")},
		{Cert: a.file("server.pem"), Key: a.file("authority.key")},
		{Cert: a.file("server.pem"), Key: a.file("server.key"), ClientCA: a.file("empty.pem")},
	} {
		if _, err := f.config(slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), a.dir) {
			t.Errorf("%+v: %v, want the file named", f, err)
		}
	}
}

func TestADrainingServerAnswersInTimeAndClosesItsConnections(t *testing.T) {
	monitor, err := metrics.NewServer(metrics.ServerOptions{
		Metrics: metrics.New("1", metrics.Sources{}), Log: slog.New(slog.DiscardHandler),
	})
	require.NoError(t, err)
	server := &http.Server{
		ReadHeaderTimeout: time.Minute, WriteTimeout: time.Minute,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if _, hasDeadline := r.Context().Deadline(); hasDeadline {
				w.WriteHeader(http.StatusNoContent)
			}
		}),
	}
	d := newDraining(server, monitor, slog.New(slog.DiscardHandler))
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	go func() { _ = server.Serve(listener) }() // until it is closed
	defer server.Close()
	request := func(path string) (status int, closes bool) {
		t.Helper()
		response, err := http.Get("http://" + listener.Addr().String() + path)
		require.NoError(t, err)
		defer response.Body.Close()
		return response.StatusCode, response.Close
	}
	if status, closes := request("/readyz"); status != http.StatusNoContent || closes {
		t.Errorf("before, /readyz answers %d, closes %v", status, closes)
	}
	d.begun.Store(true)
	if status, closes := request("/readyz"); status != http.StatusServiceUnavailable || !closes {
		t.Errorf("while it drains /readyz answers %d, closes %v", status, closes)
	}
	if status, closes := request("/other"); status != http.StatusNoContent || !closes {
		t.Errorf("while it drains /other answers %d, closes %v", status, closes)
	}
}

func TestBothDoorsEndAtOnceAndFinishWhatRuns(t *testing.T) {
	text := strings.Replace(onPort(t, 1), "strategy: redis", "strategy: local", 1)
	d := deciding(t, text, func(s *Settings) { s.NoDatabase = true })
	entered, release := make(chan bool), make(chan bool)
	take := d.rest.Decider.Buckets.Take
	d.rest.Decider.Buckets = admit.TakeFunc(func(ctx context.Context, b []policy.Bound, s []decision.Status) error {
		entered <- true
		<-release
		return take(ctx, b, s)
	})
	mapping, err := envoy.ParseMapping([]byte("domains: {edge: {tenant_from: [descriptor.tenant]}}"))
	require.NoError(t, err)
	s := &Settings{
		Listen: freeport.Address(t), ShutdownTime: 2 * await.Longest, Config: d.config,
		Envoy: Envoy{Listen: freeport.Address(t), Mapping: mapping},
	}
	log := slog.New(slog.DiscardHandler)
	monitor, err := metrics.NewServer(metrics.ServerOptions{Metrics: metrics.New("1", metrics.Sources{}), Log: log})
	require.NoError(t, err)
	server := newDraining(&http.Server{
		ReadHeaderTimeout: time.Minute, WriteTimeout: time.Minute, Handler: http.NotFoundHandler(),
	}, monitor, log)
	server.envoy, err = s.newEnvoy(d, prometheus.NewRegistry(), log)
	require.NoError(t, err)
	ctx, end := context.WithCancel(t.Context())
	ended := make(chan error, 2)
	go func() { ended <- server.envoy.Run(t.Context()) }()
	go func() { ended <- s.listenAndServe(ctx, server, log) }()
	open := func(address string) bool {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	}
	await.That(t, "the API is served", func() bool { return open(s.Listen) })
	conn, err := grpc.NewClient(s.Envoy.Listen, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer conn.Close()
	called := make(chan error, 1)
	go func() {
		_, err := rls.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(), &rls.RateLimitRequest{
			Domain: "edge", Descriptors: []*common.RateLimitDescriptor{{
				Entries: []*common.RateLimitDescriptor_Entry{{Key: "tenant", Value: "acme"}},
			}},
		}, grpc.WaitForReady(true))
		called <- err
	}()
	select {
	case <-entered:
	case err := <-called:
		t.Fatalf("the call took nothing: %v", err)
	}
	end()
	await.That(t, "the API ends, although a call of Envoy runs", func() bool { return !open(s.Listen) })
	await.That(t, "the door for Envoy takes no more calls", func() bool { return !open(s.Envoy.Listen) })
	close(release)
	require.NoError(t, <-called, "the call that ran")
	require.NoError(t, <-ended)
	require.NoError(t, <-ended)
}

func TestAPortThatIsInUseIsTheOnlyFault(t *testing.T) {
	for what, dsn := range map[string]string{
		"a database": pgtest.Shared(t).Database(t), "no database": pgtest.Denied(t),
	} {
		used, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		defer used.Close()
		s := &Settings{Listen: used.Addr().String(), Database: Database{
			Name: "RATELIMIT_DATABASE", DSN: dsn,
			Connect: func() (*pgxpool.Config, error) { return pgxpool.ParseConfig(dsn) },
		}}
		var log bytes.Buffer
		if err := Run(t.Context(), s, &log); err == nil || !strings.HasPrefix(err.Error(), "--listen: ") {
			t.Errorf("beside %s it ends with %v, want the fault of --listen", what, err)
		}
		if log.Len() > 0 {
			t.Errorf("beside %s it logs\n%s\nwant only the fault of the address", what, log.String())
		}
	}
}

func TestAFailedConnectionIsLoggedInOneLineWithTheSetting(t *testing.T) {
	dsn := pgtest.Denied(t)
	s := &Settings{Listen: "127.0.0.1:0", Database: Database{
		Name: "RATELIMIT_DATABASE", Connect: func() (*pgxpool.Config, error) { return pgxpool.ParseConfig(dsn) },
	}}
	var log bytes.Buffer
	pool, err := s.Database.open(t.Context())
	require.NoError(t, err)
	defer pool.Close()
	require.NoError(t, s.checkTokens(t.Context(), pool, s.newLog(&log)))
	if strings.Count(log.String(), "\n") != 1 {
		t.Errorf("logged\n%s\nwant one line", log.String())
	}
	pgtest.WantPlain(t, log.String(), `denied the password of user \"ann\"`, "RATELIMIT_DATABASE")
}

func TestOnlyProxiesWithACertificateReachTheDoorForEnvoy(t *testing.T) {
	a := newAuthority(t)
	a.sign("server", a)
	a.sign("proxy", a)
	mapping, err := envoy.ParseMapping([]byte("domains: {edge: {tenant_from: [descriptor.tenant]}}"))
	require.NoError(t, err)
	s := &Settings{Envoy: Envoy{Listen: freeport.Address(t), Mapping: mapping, TLS: TLSFiles{
		Cert: a.file("server.pem"), Key: a.file("server.key"), ClientCA: a.file("authority.pem"), Prefix: "envoy-",
	}}}
	text, err := os.ReadFile("testdata/kong.yml")
	require.NoError(t, err)
	d := deciding(t, string(text), func(changed *Settings) { s.Config = changed.Config })
	door, err := s.newEnvoy(d, prometheus.NewRegistry(), slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- door.Run(ctx) }()
	roots := x509.NewCertPool()
	roots.AddCert(a.cert)
	pair, err := tls.LoadX509KeyPair(a.file("proxy.pem"), a.file("proxy.key"))
	require.NoError(t, err)
	for _, certificates := range [][]tls.Certificate{{pair}, nil} {
		conn, err := grpc.NewClient(s.Envoy.Listen, grpc.WithTransportCredentials(credentials.NewTLS(
			&tls.Config{RootCAs: roots, Certificates: certificates, MinVersion: tls.VersionTLS12},
		)))
		require.NoError(t, err)
		defer conn.Close()
		_, err = healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{},
			grpc.WaitForReady(certificates != nil))
		if (err == nil) != (certificates != nil) {
			t.Errorf("with %d certificates: %v", len(certificates), err)
		}
	}
	cancel()
	require.NoError(t, <-ended)
}
