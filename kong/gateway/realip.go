package gateway

import (
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// trustedProxies holds Kong's trusted_ips. Its real_ip_header is the default X-Real-IP here, real_ip_recursive is off.
type trustedProxies []netip.Prefix

func parseTrusted(texts []string) (trustedProxies, error) {
	var all trustedProxies
	for _, text := range texts {
		network, err := netip.ParsePrefix(text)
		if err != nil {
			addr, addrErr := netip.ParseAddr(text)
			if addrErr != nil {
				return nil, fmt.Errorf("trusted IPs: %w", err)
			}
			network = netip.PrefixFrom(addr, addr.BitLen())
		}
		all = append(all, network.Masked())
	}
	return all, nil
}

func (t trustedProxies) contain(ip string) bool {
	addr, err := netip.ParseAddr(ip)
	return err == nil && slices.ContainsFunc(t, func(p netip.Prefix) bool { return p.Contains(addr.Unmap()) })
}

// clientIP returns the last address in X-Real-IP if the peer is trusted and sent one, else the peer's.
func (t trustedProxies) clientIP(peerIP string, header http.Header) string {
	if !t.contain(peerIP) {
		return peerIP
	}
	sent := strings.Join(header["X-Real-Ip"], ",")
	addr, err := netip.ParseAddr(strings.TrimSpace(sent[strings.LastIndexByte(sent, ',')+1:]))
	if err != nil {
		return peerIP
	}
	return addr.String()
}
