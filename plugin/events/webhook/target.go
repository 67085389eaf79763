package webhook

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"strings"
)

const (
	// MaxURL bounds the bytes of the URL of a webhook.
	MaxURL = 2048

	portHTTP, portHTTPS = 80, 443
	// mappedBits is the length of the prefixes under which IPv6 addresses embed an IPv4 address.
	mappedBits = 96
	// firstUserPort is the first port that needs no privilege. Below are protocols other than HTTP.
	firstUserPort = 1024
)

// Targets selects the URLs and addresses that webhooks may call. The zero value allows public addresses by HTTPS.
type Targets struct {
	Private []netip.Prefix // addresses to call although they are not public
	HTTP    bool           // allow URLs without TLS
}

// CheckURL returns why webhooks may not call a URL, or nil. Whether the addresses of its name may be called is only
// clear when it is called.
func (t *Targets) CheckURL(text string) error {
	u, err := url.Parse(text)
	switch {
	case len(text) > MaxURL:
		return fmt.Errorf("must be at most %d bytes", MaxURL)
	case err != nil || u.Hostname() == "" || strings.ContainsFunc(text, isControl):
		return errors.New("must be a URL, such as https://example.com/webhooks")
	case u.Scheme != "https" && (u.Scheme != "http" || !t.HTTP):
		return errors.New("must begin with https://, because others can read and replay what is sent without TLS " +
			"(ratelimit serve --webhook-allow-http allows http://)")
	case u.User != nil:
		return errors.New("must not have a user or a password: receivers authenticate deliveries by their signature")
	case u.Fragment != "":
		return errors.New("must not have a fragment (#), which is not sent")
	}
	if ip, err := netip.ParseAddr(u.Hostname()); err == nil && !t.Allows(ip) {
		return errPrivate
	}
	if port := u.Port(); port != "" {
		address, err := netip.ParseAddrPort("192.0.2.1:" + port)
		if err != nil || !allowsPort(address.Port()) {
			return errPort
		}
	}
	return nil
}

// NormalURL returns a URL that was checked, with its scheme in lower case.
func NormalURL(text string) string {
	scheme, path, _ := strings.Cut(text, "://")
	return strings.ToLower(scheme) + "://" + path
}

var (
	errPrivate = errors.New("must not be an address that is not public " +
		"(ratelimit serve --webhook-allow-private allows networks)")
	errPort = fmt.Errorf("must have the port %d, or one from %d", portHTTPS, firstUserPort)
)

func isControl(r rune) bool { return r <= ' ' || r == 0x7f }

func allowsPort(port uint16) bool {
	return port == portHTTP || port == portHTTPS || port >= firstUserPort
}

// AddressError reports a connection to an address that webhooks may not call. Its text does not say that there is one,
// because tenants would learn which names of a private network exist.
type AddressError struct{ Address string }

func (*AddressError) Error() string {
	return "the host of the URL leads to no address that is allowed"
}

// CheckAddress returns an AddressError if webhooks may not connect to an address, as a dialer has resolved it: ip:port.
func (t *Targets) CheckAddress(address string) error {
	to, err := netip.ParseAddrPort(address)
	if err != nil || !allowsPort(to.Port()) || !t.Allows(to.Addr()) {
		return &AddressError{address}
	}
	return nil
}

// Allows reports whether webhooks may call an address: one of the public internet, or one of Private. An IPv6 address
// that embeds an IPv4 address counts as that one.
func (t *Targets) Allows(ip netip.Addr) bool {
	ip = embedded(ip)
	for _, network := range t.Private {
		if network.Contains(ip) {
			return true
		}
	}
	return isPublic(ip)
}

// Networks by RFC 6890 and its registries, where they are not public.
var (
	privateIPv4 = prefixes("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12",
		"192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24",
		"203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4")
	// Within publicIPv6. 2001::/23 has Teredo, which embeds addresses.
	privateIPv6 = prefixes("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")
	publicIPv6  = netip.MustParsePrefix("2000::/3")
	nat64       = netip.MustParsePrefix("64:ff9b::/96")
)

func prefixes(all ...string) (list []netip.Prefix) {
	for _, text := range all {
		list = append(list, netip.MustParsePrefix(text))
	}
	return list
}

// embedded returns the IPv4 address that an IPv6 address stands for (mapped, NAT64), or the address itself, without a
// zone.
func embedded(ip netip.Addr) netip.Addr {
	ip = ip.WithZone("").Unmap()
	if bytes := ip.As16(); ip.Is6() && nat64.Contains(ip) {
		return netip.AddrFrom4([4]byte(bytes[12:]))
	}
	return ip
}

// isPublic reports whether an address belongs to the public internet. 6to4 and Teredo do not: nothing uses them today.
func isPublic(ip netip.Addr) bool {
	if !ip.IsValid() || ip.Is6() && !publicIPv6.Contains(ip) {
		return false
	}
	networks := privateIPv4
	if ip.Is6() {
		networks = privateIPv6
	}
	for _, network := range networks {
		if network.Contains(ip) {
			return false
		}
	}
	return true
}

// ParseNetworks reads a comma-separated list of networks or addresses. IPv6 networks that embed IPv4 ones become those,
// as [Targets.Allows] compares addresses.
func ParseNetworks(text string) (list []netip.Prefix, err error) {
	for item := range strings.SplitSeq(text, ",") {
		item = strings.TrimSpace(item)
		network, err := netip.ParsePrefix(item)
		if ip, notOne := netip.ParseAddr(item); err != nil && notOne == nil {
			network, err = netip.PrefixFrom(ip, ip.BitLen()), nil
		}
		if err != nil || network != network.Masked() {
			return nil, fmt.Errorf("%q must be a network, such as 10.0.0.0/8, or an address", item)
		}
		if ip := embedded(network.Addr()); ip.Is4() && network.Addr().Is6() && network.Bits() >= mappedBits {
			network = netip.PrefixFrom(ip, network.Bits()-mappedBits)
		}
		list = append(list, network)
	}
	return list, nil
}
