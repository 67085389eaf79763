package spec

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/freeport"
)

// certificate is a self-signed certificate of 127.0.0.1 for a server, a client and an authority.
type certificate struct {
	pair      tls.Certificate
	roots     *x509.CertPool
	cert, key string // the files
}

// newCertificate creates a certificate and its files.
func newCertificate(t *testing.T) *certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	model := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	cert, err := x509.CreateCertificate(rand.Reader, model, model, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	p := &certificate{roots: x509.NewCertPool(), cert: filepath.Join(dir, "cert"), key: filepath.Join(dir, "key")}
	for name, block := range map[string]*pem.Block{
		p.cert: {Type: "CERTIFICATE", Bytes: cert},
		p.key:  {Type: "PRIVATE KEY", Bytes: secret},
	} {
		if err := os.WriteFile(name, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if p.pair, err = tls.LoadX509KeyPair(p.cert, p.key); err != nil {
		t.Fatal(err)
	}
	p.roots.AddCert(p.pair.Leaf)
	return p
}

// isReady reports whether a process answers /readyz over TLS, to a client with certificates.
func (p *certificate) isReady(t *testing.T, address string, own ...tls.Certificate) bool {
	t.Helper()
	by := &http.Client{Transport: &http.Transport{
		TLSClientConfig:   &tls.Config{RootCAs: p.roots, Certificates: own, MinVersion: tls.VersionTLS13},
		ForceAttemptHTTP2: true,
	}}
	defer by.CloseIdleConnections()
	response, err := by.Get("https://" + address + "/readyz")
	if err != nil {
		return false
	}
	defer response.Body.Close()
	if response.ProtoMajor != 2 || response.Header.Get("Strict-Transport-Security") == "" {
		t.Errorf("%s %v", response.Proto, response.Header)
	}
	return response.StatusCode == http.StatusOK
}

func TestTheAPIServesTLSAndWithAClientAuthorityOnlyItsClients(t *testing.T) {
	t.Parallel()
	p, doc := newPlane(t), newCertificate(t)
	for _, mutual := range []bool{false, true} {
		_, port, err := net.SplitHostPort(freeport.Address(t))
		if err != nil {
			t.Fatal(err)
		}
		args := []string{"--listen", "0.0.0.0:" + port, "--tls-cert", doc.cert, "--tls-key", doc.key}
		var own []tls.Certificate
		if mutual {
			args, own = append(args, "--client-ca", doc.cert), []tls.Certificate{doc.pair}
		}
		a := p.launch(args...)
		address := "127.0.0.1:" + port
		await.That(t, "it serves by TLS", func() bool { return doc.isReady(t, address, own...) })
		if bare := doc.isReady(t, address); bare == mutual {
			t.Errorf("with a client authority %v: a client without a certificate is served: %v", mutual, bare)
		}
		if mutual && doc.isReady(t, address, newCertificate(t).pair) {
			t.Error("a client with a certificate of another authority is served")
		}
		a.url = "http://" + address
		if status := a.status("/readyz"); status == http.StatusOK {
			t.Error("it answers without TLS")
		}
	}
}
