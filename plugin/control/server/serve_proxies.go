package server

import (
	"fmt"
	"net/http"
	"net/netip"
	"strings"
)

const (
	// maxHops bounds how many addresses of X-Forwarded-For are read, from the right.
	maxHops = 32
	// maxHop bounds the bytes of one of them: an IPv6 address with a zone and a port is shorter.
	maxHop = 80
)

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
	for _, network := range p {
		if network.Contains(address) {
			return true
		}
	}
	return false
}

// clientOf returns the address and port of the client that a peer sends requests for: the right-most address of
// X-Forwarded-For that is not that of a proxy. A client can forge what is left of it. Without such an address it is
// that of the first proxy; a malformed one ends the list. The port is 0 unless the header has it.
func (p Proxies) clientOf(peer netip.AddrPort, forwarded []string) netip.AddrPort {
	client, hops := peer, 0
	for i := len(forwarded) - 1; i >= 0; i-- { // lines are one list
		line, more := forwarded[i], true
		for more {
			if hops++; hops > maxHops || !p.trusts(client.Addr().Unmap().WithZone("")) {
				return client
			}
			comma := strings.LastIndexByte(line, ',')
			hop, ok := parseHop(line[comma+1:])
			if !ok {
				return client
			}
			client, more = hop, comma >= 0
			line = line[:max(comma, 0)]
		}
	}
	return client
}

// parseHop parses an item of X-Forwarded-For: an address, or an address and a port. IPv6 addresses may have brackets.
func parseHop(text string) (netip.AddrPort, bool) {
	text = strings.Trim(text, " \t")
	if len(text) > maxHop {
		return netip.AddrPort{}, false
	}
	at, err := netip.ParseAddrPort(text)
	if err != nil {
		inner, isOpen := strings.CutPrefix(text, "[")
		inner, isClosed := strings.CutSuffix(inner, "]")
		ip, err := netip.ParseAddr(inner)
		if err != nil || isOpen != isClosed || isOpen && ip.Is4() {
			return netip.AddrPort{}, false
		}
		at = netip.AddrPortFrom(ip, 0)
	}
	return netip.AddrPortFrom(at.Addr().Unmap().WithZone(""), at.Port()), true // zones are those of the proxy's machine
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
