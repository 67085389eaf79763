package schema

import (
	"math"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/docpath"
)

// LocatedLimit is a limit with its place in the config.
type LocatedLimit struct {
	Limit
	Path string
	List string // the list it is in, for messages: "tier enterprise", "anonymous" or "global"
}

// Limits returns all limits of c in document order of the schema.
func (c Config) Limits() []LocatedLimit {
	var all []LocatedLimit
	add := func(path, list string, limits []Limit) {
		for i, l := range limits {
			all = append(all, LocatedLimit{l, docpath.Item(path+".limits", i), list})
		}
	}
	for i, tier := range c.Tiers {
		add(docpath.Item("tiers", i), "tier "+docpath.Shorten(tier.Name), tier.Limits)
	}
	add("anonymous", "anonymous", c.Anonymous.Limits)
	add("global", "global", c.Global.Limits)
	return all
}

// semanticFaults finds faults that Kong's schema language cannot express. Fields may have values that the schema check
// has reported already; consequences of those are not reported.
func (c Config) semanticFaults() []Fault {
	faults := slices.Concat(c.tierFaults(), c.headerFaults(), c.nameFaults(), c.exemptFaults(), c.poolFaults(),
		c.LLM.faults())
	for _, l := range c.Limits() {
		faults = append(append(faults, l.textFaults()...), l.faults()...)
	}
	return faults
}

func (c Config) tierFaults() []Fault {
	var faults findings
	first := map[string]int{}
	for i, tier := range c.Tiers {
		if at, ok := first[tier.Name]; ok && tier.Name != "" {
			faults.add(docpath.Item("tiers", i)+".name", "is the name of tiers[%d] too: %q", at, docpath.Shorten(tier.Name))
			continue
		}
		first[tier.Name] = i
	}
	if _, ok := first[c.DefaultTier]; !ok && c.DefaultTier != "" {
		near := hint(c.DefaultTier, tierNames(c.Tiers))
		faults.add("default_tier", "names no tier: %q%s", docpath.Shorten(c.DefaultTier), near)
	}
	return faults
}

func tierNames(tiers []Tier) []string {
	names := make([]string, len(tiers))
	for i, tier := range tiers {
		names[i] = tier.Name
	}
	return names
}

// headerFaults returns faults of headers that identify or charge a request although clients can set them.
func (c Config) headerFaults() []Fault {
	var faults findings
	trusted := map[string]bool{}
	for i, header := range c.TrustedHeaders {
		trusted[strings.ToLower(header)] = true
		if strings.EqualFold(header, "cookie") {
			faults.add(docpath.Item("trusted_headers", i),
				"must not be Cookie: Kong joins its lines by semicolons, so two lines look like one; use a header of its own")
		}
	}
	check := func(path, header string) {
		if !trusted[strings.ToLower(header)] {
			faults.add(path, "reads header %s, which a client can set as it likes: list it in trusted_headers if something "+
				"in front of Kong sets it", docpath.Shorten(header))
		}
	}
	for _, sources := range []struct {
		path string
		list []string
	}{{"tenant_from", c.TenantFrom}, {"user_from", c.UserFrom}, {"tier_from", c.TierFrom}} {
		for i, source := range sources.list {
			if header, ok := strings.CutPrefix(source, "header."); ok {
				check(docpath.Item(sources.path, i), header)
			}
		}
	}
	if c.CostHeader != "" {
		check("cost_header", c.CostHeader)
	}
	for _, source := range c.LLM.callSources()[4:] {
		if header, ok := strings.CutPrefix(source[1], "header."); ok {
			check(docpath.Member("llm", source[0]), header)
		}
	}
	reserves := map[string]bool{}
	for _, l := range c.Limits() {
		if l.Settle == nil || l.Settle.ReserveHeader == "" {
			continue
		}
		path, header := docpath.Join(l.Path, "settle.reserve_header"), l.Settle.ReserveHeader
		check(path, header)
		if reserves[strings.ToLower(header)] = true; len(reserves) > MaxReserveHeaders {
			faults.add(path, "is another header than the first %d: a config reads reservations from at most so many",
				MaxReserveHeaders)
		}
	}
	return faults
}

// nameFaults finds limits that would share a counter, which belongs to a name and an endpoint.
func (c Config) nameFaults() []Fault {
	type identity struct{ list, name, endpoint string }
	var faults findings
	first := map[identity]string{}
	firstOfName := map[string]LocatedLimit{} // first limit of each name outside of global
	for _, l := range c.Limits() {
		if l.Name == "" {
			continue
		}
		list, _, _ := strings.Cut(l.Path, ".")
		id := identity{list, l.Name, CanonicalEndpoint(l.Endpoint)}
		if at, ok := first[id]; ok {
			faults.add(l.Path+".name", "%s is the name of %s too, for the same endpoint", l.Name, at)
			continue
		}
		first[id] = l.Path
		if list != "global" {
			if _, ok := firstOfName[l.Name]; !ok {
				firstOfName[l.Name] = l
			}
		} else if other, ok := firstOfName[l.Name]; ok {
			faults.add(l.Path+".name", "%s is the name of %s too: of two limits with one name only one applies, and global "+
				"limits must always apply", l.Name, other.Path)
		}
	}
	return faults
}

// CanonicalEndpoint returns one spelling for patterns that differ only in the names of parameters. Package policy finds
// out whether two different patterns overlap.
func CanonicalEndpoint(pattern string) string { return parameter.ReplaceAllString(pattern, "{}") }

var parameter = regexp.MustCompile(`\{[^}]*\}`)

func (l LocatedLimit) textFaults() []Fault {
	var faults []Fault
	row := Policy{Limit: l.Limit}
	for _, f := range Fields[Policy]() {
		if text, ok := f.In(&row).(*string); f.Unit == "text" && ok && strings.ContainsFunc(*text, unicode.IsControl) {
			faults = append(faults, Fault{docpath.Member(l.Path, f.Name), f.Must()})
		}
	}
	return faults
}

// faults returns the faults of l by itself that Kong's schema language cannot express.
func (l LocatedLimit) faults() []Fault {
	faults := findings(slices.Concat(l.settleFaults(), l.callFaults(), l.fairFaults(), l.anchorFaults()))
	if !l.inRange() {
		return faults
	}
	switch soft, hard := l.SoftThresholdPct, l.HardThresholdPct; {
	case soft <= max(hard, 100) || l.SoftOnly:
	case hard == 0:
		faults.add(docpath.Member(l.Path, "soft_threshold_pct"),
			"must be <= 100 unless hard_threshold_pct is higher, got %d", soft)
	default:
		faults.add(docpath.Member(l.Path, "hard_threshold_pct"), "must be >= soft_threshold_pct (%d), got %d", soft, hard)
	}
	if ceiling := l.ceiling(); l.Cost != nil && *l.Cost > ceiling && !l.SoftOnly {
		faults.add(docpath.Member(l.Path, "cost"),
			"is %d tokens, but the limit can never hold more than %d: every request would be denied", *l.Cost, ceiling)
	}
	return faults
}

// inRange reports whether arithmetic with the numbers of l is defined and cannot overflow.
func (l Limit) inRange() bool {
	const within = math.MaxInt64 / 1000 // percentages go up to 1000
	return l.Limit > 0 && l.Limit <= within && l.Burst >= 0 && l.Burst <= within &&
		(l.WindowSize > 0 || l.Period != "" || l.MaxDuration > 0) &&
		l.HardThresholdPct >= 0 && l.HardThresholdPct <= 1000
}

// ceiling returns the most tokens that one request can get from l: its capacity, raised by the hard threshold if there
// is a soft one.
func (l Limit) ceiling() int64 {
	capacity := l.Capacity()
	if l.SoftThresholdPct > 0 && l.HardThresholdPct > 100 {
		return capacity * l.HardThresholdPct / 100
	}
	return capacity
}
