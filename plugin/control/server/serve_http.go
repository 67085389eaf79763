package server

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/forward"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/portal"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/portal/oidc"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/portal/session"
)

// Portal configures the pages for people.
type Portal struct {
	On      bool
	KeyFile string // "": a random key
	Idle    time.Duration
	Brand   portal.Brand
	OIDC    oidc.Settings // without an issuer: people sign in with tokens only
}

// newPortal returns the portal, or nil if it is off.
func (s *Settings) newPortal(
	rest *api.Server, numbers prometheus.Registerer, log *slog.Logger,
) (*portal.Portal, error) {
	if !s.Portal.On {
		return nil, nil
	}
	key, err := s.Portal.readKey()
	if err != nil {
		return nil, err
	}
	o := portal.Options{
		API: rest, Log: log, Key: key, Idle: s.Portal.Idle, Brand: s.Portal.Brand, Metrics: numbers,
	}
	if s.Portal.OIDC.Issuer != "" {
		o.Provider = oidc.New(oidc.Options{Settings: s.Portal.OIDC, Now: time.Now, Log: log})
	}
	return portal.New(o)
}

// readKey returns the key of the file: 32 bytes, as they are or in base64.
func (p *Portal) readKey() ([]byte, error) {
	if p.KeyFile == "" {
		return nil, nil
	}
	text, err := os.ReadFile(p.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("--portal-key-file: %w", err)
	}
	if len(text) == session.KeySize {
		return text, nil
	}
	key, err := base64.StdEncoding.DecodeString(string(bytes.TrimSpace(text)))
	if err != nil || len(key) != session.KeySize {
		return nil, fmt.Errorf("--portal-key-file: %s must have %d random bytes, as they are or in base64: make one with "+
			"openssl rand -base64 32", p.KeyFile, session.KeySize)
	}
	return key, nil
}

// httpServer returns the HTTP server of the API, of the portal and of forward auth unless they are nil.
func (s *Settings) httpServer(rest *api.Server, pages *portal.Portal, door *forward.Door) *http.Server {
	server := rest.HTTPServer()
	if pages != nil {
		server.Handler = mount(rest, pages)
	}
	others := s.TrustedProxies.replacePeer(server.Handler)
	server.Handler = others
	if door != nil {
		server.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == forward.Path {
				door.ServeHTTP(w, r)
				return
			}
			others.ServeHTTP(w, r)
		})
	}
	return server
}

// mount returns a handler of the API and of the portal beside it. Browsers that open the address itself get the portal.
func mount(api http.Handler, pages *portal.Portal) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch path := r.URL.Path; {
		case strings.HasPrefix(path, "/portal/"):
			pages.ServeHTTP(w, r)
		case path == "/portal", path == "/" && strings.Contains(r.Header.Get("Accept"), "text/html"):
			w.Header().Set("Cache-Control", "no-store")
			http.Redirect(w, r, "/portal/", http.StatusSeeOther)
		default:
			api.ServeHTTP(w, r)
		}
	})
}

// Proxies are the networks of proxies in front of the process, whose X-Forwarded-For names the client.
type Proxies []netip.Prefix

// ParseProxies parses a comma-separated list of networks or addresses.
func ParseProxies(text string, to *Proxies) error {
	var list Proxies
	for item := range strings.SplitSeq(text, ",") {
		item = strings.TrimSpace(item)
		network, err := netip.ParsePrefix(item)
		if ip, notOne := netip.ParseAddr(item); err != nil && notOne == nil && ip.Zone() == "" {
			network, err = netip.PrefixFrom(ip, ip.BitLen()), nil
		}
		if bits := network.Bits() - 96; err == nil && bits >= 0 && network.Addr().Is4In6() {
			network = netip.PrefixFrom(network.Addr().Unmap(), bits)
		}
		switch {
		case err != nil || network != network.Masked():
			return fmt.Errorf("%q must be a network, such as 10.0.0.0/8, or an address", item)
		case network.Bits() == 0:
			return fmt.Errorf("%q has all addresses, so clients could choose theirs: name the networks of proxies only", item)
		}
		list = append(list, network)
	}
	*to = list
	return nil
}

// trusts reports whether an address is that of a proxy.
func (p Proxies) trusts(address netip.Addr) bool {
	address = address.Unmap().WithZone("")
	return slices.ContainsFunc(p, func(network netip.Prefix) bool { return network.Contains(address) })
}

// clientOf returns the address and port of the client that a peer sends requests for: the right-most address of
// X-Forwarded-For that is not that of a proxy. A client can forge what is left of it. Without such an address it is
// that of the first proxy; a malformed one ends the list. The port is 0 unless the header has it.
func (p Proxies) clientOf(peer netip.AddrPort, forwarded []string) netip.AddrPort {
	client, list := peer, strings.Join(forwarded, ",")
	for more := true; more && p.trusts(client.Addr()); {
		comma := strings.LastIndexByte(list, ',')
		hop, ok := parseHop(list[comma+1:])
		if !ok {
			break
		}
		client, list, more = hop, list[:max(comma, 0)], comma >= 0
	}
	return client
}

// parseHop parses an item of X-Forwarded-For: an address, or an address and a port. IPv6 addresses may have brackets.
func parseHop(text string) (netip.AddrPort, bool) {
	text = strings.Trim(text, " \t")
	for _, form := range []string{text, text + ":0", "[" + text + "]:0"} {
		if at, err := netip.ParseAddrPort(form); err == nil {
			// Zones are those of the proxy's machine.
			return netip.AddrPortFrom(at.Addr().Unmap().WithZone(""), at.Port()), true
		}
	}
	return netip.AddrPort{}, false
}

// clientBehind returns the address of the client that the peer of a request asks for, and reports whether the peer is a
// proxy.
func (p Proxies) clientBehind(r *http.Request) (netip.Addr, bool) {
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	return p.clientOf(peer, r.Header["X-Forwarded-For"]).Addr(), err == nil && p.trusts(peer.Addr())
}

// replacePeer returns a handler that sees the address of the client as that of the peer, behind one of the proxies.
func (p Proxies) replacePeer(next http.Handler) http.Handler {
	if len(p) == 0 {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		forwarded := r.Header["X-Forwarded-For"]
		peer, err := netip.ParseAddrPort(r.RemoteAddr)
		if client := p.clientOf(peer, forwarded); err == nil && client != peer {
			r = r.WithContext(r.Context()) // handlers must not change the request of the server
			r.RemoteAddr = client.String()
		}
		next.ServeHTTP(w, r)
	})
}

// TLSFiles names the PEM files of a server. The zero value disables TLS. Prefix is how the names of their flags begin.
type TLSFiles struct{ Cert, Key, ClientCA, Prefix string }

// validate returns an error that names the flag that another one requires.
func (f TLSFiles) validate() error {
	switch {
	case (f.Cert == "") != (f.Key == ""):
		return fmt.Errorf("give --%stls-cert and --%[1]stls-key together", f.Prefix)
	case f.ClientCA != "" && f.Cert == "":
		return fmt.Errorf("--%sclient-ca: client certificates require TLS: give --%[1]stls-cert and --%[1]stls-key", f.Prefix)
	}
	return nil
}

// config returns the TLS config of a server, or nil without TLS. It reloads the certificate when its files change, and
// reads the authorities of clients once.
func (f TLSFiles) config(log *slog.Logger) (*tls.Config, error) {
	if f.Cert == "" {
		return nil, nil
	}
	pair := &keyPair{files: f, log: log, now: time.Now}
	if err := pair.read(); err != nil {
		return nil, err
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: pair.get, NextProtos: []string{"h2", "http/1.1"}}
	if f.ClientCA == "" {
		return config, nil
	}
	text, err := os.ReadFile(f.ClientCA)
	if err != nil {
		return nil, fmt.Errorf("--%sclient-ca: %w", f.Prefix, err)
	}
	config.ClientCAs, config.ClientAuth = x509.NewCertPool(), tls.RequireAndVerifyClientCert
	if !config.ClientCAs.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("--%sclient-ca: %s has no certificate in PEM", f.Prefix, f.ClientCA)
	}
	return config, nil
}

// lookEvery is how often the files of a certificate are read, at most: with a handshake.
const lookEvery = time.Second

// keyPair is a certificate with its key, as their files have it. What cannot be read leaves the last good one in place:
// a handshake between the writing of one file and of the other finds a pair that does not fit.
type keyPair struct {
	files TLSFiles
	log   *slog.Logger
	now   func() time.Time

	mu     sync.Mutex
	pair   tls.Certificate
	looked time.Time
	warned bool // the current failure was logged
}

// get returns the certificate of a handshake.
func (k *keyPair) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := k.now()
	if age := now.Sub(k.looked); age >= 0 && age < lookEvery {
		return new(k.pair), nil
	}
	k.looked = now
	before := k.pair.Certificate
	err := k.read()
	switch {
	case err != nil && !k.warned:
		k.log.Warn("reading the certificate failed: the last good one is served", "error", err)
	case err == nil && !slices.EqualFunc(before, k.pair.Certificate, bytes.Equal):
		k.log.Info("the certificate was reloaded", "file", k.files.Cert)
	}
	k.warned = err != nil
	return new(k.pair), nil
}

// read reads the files. If it fails, the current pair stays.
func (k *keyPair) read() error {
	pair, err := tls.LoadX509KeyPair(k.files.Cert, k.files.Key)
	if err != nil {
		return fmt.Errorf("read the certificate %s and its key %s: %w", k.files.Cert, k.files.Key, err)
	}
	k.pair = pair
	return nil
}
