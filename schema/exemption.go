package schema

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/docpath"
)

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
