package redis

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/freeport"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

func TestASocketADatabaseAndAnACLUserAreReached(t *testing.T) {
	server := redistest.Single(t)
	client := server.Client(t)
	must(t, client, "acl", "setuser", "kong", "on", ">hunter2", "~*", "+evalsha", "+script|load", "+info", "+select",
		"+incr")
	eachWay(t, func(t *testing.T, pipelined bool) {
		must(t, client, "flushall")
		c := checked(t, newScript(countScript), schema.Redis{
			Socket: server.Socket, Database: 3, Username: "kong", Password: "hunter2", Pipeline: pipelined, SendTimeout: 30_000,
			ReadTimeout: 30_000,
		})
		require.NoError(t, atOnce(8, 1, func() error { return run(c, "k") }))
		third := redis.NewClient(&redis.Options{Network: "unix", Addr: server.Socket, DB: 3})
		defer third.Close()
		if count, err := third.Get(t.Context(), "k").Int(); err != nil || count != 8 {
			t.Errorf("8 calls counted %d in database 3 (%v)", count, err)
		}
	})
}

// authority signs certificates and writes them into files.
type authority struct {
	dir         string
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{dir: t.TempDir()}
	a.certificate, a.key = a.issue(t, "ca",
		&x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign})
	return a
}

func (a *authority) file(name string) string { return filepath.Join(a.dir, name) }

// issue makes NAME.pem and NAME.key, signed by the authority, or by itself while there is none.
func (a *authority) issue(
	t *testing.T, name string, template *x509.Certificate,
) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	fatal := func(err error) {
		require.NoError(t, err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	fatal(err)
	template.SerialNumber, err = rand.Int(rand.Reader, big.NewInt(1<<62))
	fatal(err)
	template.Subject = pkix.Name{CommonName: name}
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	issuer, signer := a.certificate, a.key
	if issuer == nil {
		issuer, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, issuer, &key.PublicKey, signer)
	fatal(err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	fatal(err)
	fatal(os.WriteFile(a.file(name+".pem"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	fatal(os.WriteFile(a.file(name+".key"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), 0o600))
	certificate, err := x509.ParseCertificate(der)
	fatal(err)
	return certificate, key
}

func TestTLSIsVerifiedBothWays(t *testing.T) {
	ours, foreign := newAuthority(t), newAuthority(t)
	ours.issue(t, "server", &x509.Certificate{
		DNSNames: []string{"redis.internal"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	ours.issue(t, "client", &x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	foreign.issue(t, "client", &x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	port := freeport.Port(t)
	redistest.Single(t, "--tls-port", strconv.Itoa(port), "--tls-auth-clients", "yes", "--tls-ca-cert-file",
		ours.file("ca.pem"),
		"--tls-cert-file", ours.file("server.pem"), "--tls-key-file", ours.file("server.key"))
	good := schema.Redis{
		Host: "127.0.0.1", Port: int64(port), SSL: true, SSLVerify: true, CACert: ours.file("ca.pem"),
		ClientCert: ours.file("client.pem"), ClientKey: ours.file("client.key"), SendTimeout: 30_000, ReadTimeout: 30_000,
		ConnectTimeout: 30_000,
	}
	for _, test := range []struct {
		name   string
		change func(*schema.Redis)
		works  bool
	}{
		{"as it should be", func(*schema.Redis) {}, true},
		{"by the server's other name", func(r *schema.Redis) { r.ServerName = "redis.internal" }, true},
		{"by a name that is not the server's", func(r *schema.Redis) { r.ServerName = "redis.example" }, false},
		{"with another authority", func(r *schema.Redis) { r.CACert = foreign.file("ca.pem") }, false},
		{"with the authorities of the system", func(r *schema.Redis) { r.CACert = "" }, false},
		{"without verifying", func(r *schema.Redis) { r.CACert, r.SSLVerify = "", false }, true},
		{"without a client certificate", func(r *schema.Redis) { r.ClientCert, r.ClientKey = "", "" }, false},
		{"with a foreign client certificate", func(r *schema.Redis) {
			r.ClientCert, r.ClientKey = foreign.file("client.pem"), foreign.file("client.key")
		}, false},
		{"without TLS", func(r *schema.Redis) { r.SSL = false }, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			eachWay(t, func(t *testing.T, pipelined bool) {
				block := good
				block.Pipeline = pipelined
				test.change(&block)
				c := open(t, newScript(countScript), block)
				if err := atOnce(8, 1, func() error { return run(c, "k") }); (err == nil) != test.works {
					t.Errorf("%v", err)
				}
			})
		})
	}
}

func TestACertificateIsReplacedWithoutARestart(t *testing.T) {
	a := newAuthority(t)
	server := &x509.Certificate{
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	a.issue(t, "server", server)
	port := freeport.Port(t)
	redistest.Single(t, "--tls-port", strconv.Itoa(port), "--tls-auth-clients", "no", "--tls-ca-cert-file",
		a.file("ca.pem"),
		"--tls-cert-file", a.file("server.pem"), "--tls-key-file", a.file("server.key"))
	mine := filepath.Join(t.TempDir(), "ca.pem")
	replace := func(with string) {
		text, err := os.ReadFile(with)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(mine, text, 0o600))
	}
	replace(newAuthority(t).file("ca.pem"))
	c := open(t, newScript(countScript), schema.Redis{
		Host: "127.0.0.1", Port: int64(port), SSL: true, SSLVerify: true, CACert: mine,
		SendTimeout: 30_000, ReadTimeout: 30_000, ConnectTimeout: 30_000,
	})
	require.NoError(t, wantKind(run(c, "k"), NotSent))
	replace(a.file("ca.pem"))
	assert.NoError(t, run(c, "k"))
}

func TestSettingsThatCannotWorkAreAnErrorAtOnce(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty.pem")
	require.NoError(t, os.WriteFile(empty, nil, 0o600))
	for fault, block := range map[string]schema.Redis{
		"host, socket, cluster_nodes or sentinel_nodes is needed": {},
		"read ca_cert":                    {Host: "h", SSL: true, CACert: "/nowhere"},
		"no certificate":                  {Host: "h", SSL: true, CACert: empty},
		"read client_cert and client_key": {Host: "h", SSL: true, ClientCert: empty, ClientKey: empty},
		"needs server_name":               {Socket: "/s", SSL: true, SSLVerify: true},
	} {
		if _, err := normalize(block); err == nil || !strings.Contains(err.Error(), fault) {
			t.Errorf("want %q, got %v", fault, err)
		}
	}
}

func TestAPlaceIsSaidShortly(t *testing.T) {
	cluster := func(hosts ...string) (nodes []schema.RedisClusterNode) {
		for _, host := range hosts {
			nodes = append(nodes, schema.RedisClusterNode{IP: host, Port: 7000})
		}
		return nodes
	}
	for want, block := range map[string]schema.Redis{
		"redis.internal:6379":         {Host: "redis.internal"},
		"[::1]:7":                     {Host: "::1", Port: 7},
		"/run/redis.sock":             {Socket: "/run/redis.sock"},
		"a cluster at a:7000, b:7000": {ClusterNodes: cluster("b", "a")},
		"a cluster at a:7000, b:7000, c:7000 and 2 more": {ClusterNodes: cluster("e", "d", "c", "b", "a")},
		"master m of the sentinels at s:26379": {
			SentinelMaster: "m",
			SentinelNodes:  []schema.RedisSentinelNode{{Host: "s"}},
		},
	} {
		s, err := normalize(block)
		require.NoError(t, err)
		assert.Equal(t, want, s.place())
	}
}
