package gateway

import (
	"fmt"
	"net/http"
	"net/netip"
	"strings"
)

// realIP finds a client's address behind trusted proxies, as nginx's realip
// module does: settings trusted_ips, real_ip_header and real_ip_recursive.
type realIP struct {
	trustedNets []netip.Prefix
	header      string
	recursive   bool
}

func newRealIP(trusted []string, header string, recursive bool) (*realIP, error) {
	r := &realIP{header: http.CanonicalHeaderKey(header), recursive: recursive}
	if header == "" {
		r.header = "X-Real-Ip"
	}
	for _, text := range trusted {
		network, err := netip.ParsePrefix(text)
		if err != nil {
			addr, addrErr := netip.ParseAddr(text)
			if addrErr != nil {
				return nil, fmt.Errorf("trusted_ips: %w", err)
			}
			network = netip.PrefixFrom(addr, addr.BitLen())
		}
		r.trustedNets = append(r.trustedNets, network.Masked())
	}
	return r, nil
}

func (r *realIP) trusts(ip string) bool {
	addr, err := netip.ParseAddr(ip)
	if err != nil {
		return false
	}
	addr = addr.Unmap()
	for _, network := range r.trustedNets {
		if network.Contains(addr) {
			return true
		}
	}
	return false
}

// of is the client's address and port: the peer's unless it is trusted, else
// the last one in the header (with recursive: the last that is not trusted). A
// port comes only from the header; nginx keeps the peer's without one.
func (r *realIP) of(peerIP, peerPort string, header http.Header) (ip, port string) {
	ip, port = peerIP, peerPort
	if len(r.trustedNets) == 0 || !r.trusts(peerIP) {
		return ip, port
	}
	hops := strings.Split(strings.Join(header[r.header], ","), ",")
	for i := len(hops) - 1; i >= 0; i-- {
		hopIP, hopPort, ok := parseHop(strings.TrimSpace(hops[i]))
		if !ok {
			return ip, port
		}
		ip, port = hopIP, hopPort
		if port == "" {
			port = peerPort
		}
		if !r.recursive || !r.trusts(ip) {
			return ip, port
		}
	}
	return ip, port
}

func parseHop(text string) (ip, port string, ok bool) {
	if addr, err := netip.ParseAddr(strings.Trim(text, "[]")); err == nil {
		return addr.String(), "", true
	}
	withPort, err := netip.ParseAddrPort(text)
	if err != nil {
		return "", "", false
	}
	return withPort.Addr().String(), fmt.Sprint(withPort.Port()), true
}
