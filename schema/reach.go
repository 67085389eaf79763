package schema

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/docpath"
)

// tagProblem returns why no consumer of Kong has a tag, or "". A space at an end is a fault and is not trimmed: the
// other tag could be that of other consumers.
func tagProblem(tag string) string {
	switch {
	case tag == "":
		return ""
	case strings.TrimSpace(tag) != tag:
		return fmt.Sprintf("must not begin or end with a space, got %q", docpath.Shorten(tag))
	case strings.ContainsAny(tag, ",/"), strings.ContainsFunc(tag, unicode.IsControl), !utf8.ValidString(tag):
		return fmt.Sprintf("must be a tag that Kong accepts, in UTF-8 and without commas, slashes and control "+
			"characters, got %q", docpath.Shorten(tag))
	}
	return ""
}

// noClients lists the networks whose addresses no client has.
var noClients = [...]struct {
	network netip.Prefix
	use     string
}{
	{netip.MustParsePrefix("0.0.0.0/32"), "no address"},
	{netip.MustParsePrefix("224.0.0.0/4"), "multicast"},
	{netip.MustParsePrefix("255.255.255.255/32"), "broadcast"},
	{netip.MustParsePrefix("::/128"), "no address"},
	{netip.MustParsePrefix("ff00::/8"), "multicast"},
}

// networkProblem returns why no client has an address of a network, or "".
func networkProblem(network netip.Prefix) string {
	for _, none := range noClients {
		if none.network.Bits() <= network.Bits() && none.network.Contains(network.Addr()) {
			return fmt.Sprintf("contains no address of a client: %s is %s", none.network, none.use)
		}
	}
	return ""
}

// addressProblem returns why no client has an address, or one of a network, or "". It ignores texts that are neither.
// A zone is a fault and is not removed: it names an interface of one machine, and without it the address is another.
func addressProblem(text string) string {
	network, err := netip.ParsePrefix(text)
	if err != nil {
		address, err := netip.ParseAddr(text)
		if err != nil {
			return ""
		}
		if bare := address.WithZone(""); bare != address {
			return fmt.Sprintf("must not have a zone, because addresses count without one: write %s in place of %s",
				bare.Unmap(), docpath.Shorten(text))
		}
		network = netip.PrefixFrom(address.Unmap(), address.Unmap().BitLen())
	}
	return networkProblem(network)
}

// methods lists the methods of requests that plugins can see: those of IANA's registry, and some that caches and media
// servers use. Kong answers CONNECT and TRACE before its plugins run.
var methods = strings.Fields(`GET HEAD POST PUT PATCH DELETE OPTIONS QUERY
	ACL BASELINE-CONTROL BIND CHECKIN CHECKOUT COPY LABEL LINK LOCK MERGE MKACTIVITY MKCALENDAR MKCOL MKREDIRECTREF
	MKWORKSPACE MOVE ORDERPATCH PROPFIND PROPPATCH REBIND REPORT SEARCH UNBIND UNCHECKOUT UNLINK UNLOCK UPDATE
	UPDATEREDIRECTREF VERSION-CONTROL
	BAN PURGE REFRESH NOTIFY SUBSCRIBE UNSUBSCRIBE M-SEARCH`)

// methodProblem returns why no request has the method of an endpoint pattern, or "". A text without a method is another
// fault.
func methodProblem(pattern string) string {
	method, _, found := strings.Cut(pattern, " ")
	switch {
	case !found, method == "*", slices.Contains(methods, method):
		return ""
	case method == "CONNECT", method == "TRACE":
		return fmt.Sprintf("must not have the method %s: Kong answers it before its plugins run", method)
	}
	return fmt.Sprintf("must have a method of HTTP, such as GET, or * for any, got %s%s", docpath.Shorten(method),
		hint(method, methods))
}

// exemptFaults returns the faults of tags, networks and methods that Kong's schema language cannot express.
func (c Config) exemptFaults() []Fault {
	var faults findings
	for i, e := range c.Exempt {
		path := docpath.Item("exempt", i)
		faults.addProblem(path+".tag", tagProblem(e.Tag))
		if _, err := e.Network(); err != nil {
			faults.addProblem(path+".cidr", err.Error())
		}
		faults.addProblem(path+".endpoint", methodProblem(e.Endpoint))
	}
	return faults
}

// Network returns the network of e, or an error that says how to write it. An entry without a network has the zero
// Prefix.
func (e Exemption) Network() (netip.Prefix, error) {
	if e.CIDR == "" {
		return netip.Prefix{}, nil
	}
	prefix, err := netip.ParsePrefix(e.CIDR)
	switch {
	case err != nil:
		return netip.Prefix{}, fmt.Errorf("must be a network, such as 10.0.0.0/8 or 2001:db8::/48, got %s",
			docpath.Shorten(e.CIDR))
	case prefix.Addr().Is4In6():
		return netip.Prefix{}, fmt.Errorf("must be written as a network of IPv4, such as 192.0.2.0/24, got %s", e.CIDR)
	case prefix.Bits() == 0:
		return netip.Prefix{}, fmt.Errorf("must not cover all addresses, got %s", e.CIDR)
	case prefix != prefix.Masked():
		return netip.Prefix{}, fmt.Errorf("has bits set after its length: write %s, or %s for the one address",
			prefix.Masked(), netip.PrefixFrom(prefix.Addr(), prefix.Addr().BitLen()))
	}
	if problem := networkProblem(prefix); problem != "" {
		return netip.Prefix{}, errors.New(problem)
	}
	return prefix, nil
}

// Subject returns what e is about, in words.
func (e Exemption) Subject() string {
	return inWords("tenant", e.Tenant, "user", e.User, "tag", e.Tag, "cidr", e.CIDR, "endpoint", e.Endpoint)
}

// exemptWarnings returns warnings of exemptions that match nothing or nearly everything, and of preflights that no
// limit holds for.
func (c Config) exemptWarnings() []Warning {
	var warnings findings
	first := map[Exemption]int{}
	for i, e := range c.Exempt {
		path := docpath.Item("exempt", i)
		at, repeated := first[e]
		switch {
		case repeated:
			warnings.add(path, "is the same as exempt[%d]", at)
		case e == Exemption{Endpoint: "* /*"}:
			warnings.add(path, "exempts requests to all endpoints but the root")
		case e.User != "" && c.UserFrom != nil && len(c.UserFrom) == 0:
			warnings.add(docpath.Member(path, "user"), "matches no request, because user_from is empty")
		}
		if !repeated {
			first[e] = i
		}
	}
	if c.ExemptPreflights && !c.limitsEveryRequest() {
		warnings.add("exempt_preflights", "lets a client send as many preflights as it likes, because no limit in global "+
			"holds for all of them: add one, such as one with scope ip")
	}
	return warnings
}

// limitsEveryRequest reports whether a limit of global holds for the requests to all endpoints.
func (c Config) limitsEveryRequest() bool {
	return slices.ContainsFunc(c.Global.Limits, func(l Limit) bool {
		return l.Endpoint == "" && !l.SoftOnly && l.Mode != ModeShadow && l.Mode != ModeLog
	})
}
