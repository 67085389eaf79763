// Package suggest derives limits from recorded traffic: for each tier, and for the endpoints that it uses most, a
// percentile of what its tenants have requested in a window, times some headroom.
//
// [Probe] makes configs by which a replay.Gateway identifies tenants, tiers and costs as the plugin does. [Collector]
// counts its decisions. [Judge] makes configs with the suggested limits, by which a second replay finds whom these
// would have denied. This package decides nothing itself.
package suggest

import (
	"cmp"
	"errors"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/lab/replay"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/node/routeconfig"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// Options says how limits are derived.
type Options struct {
	Percentile  float64      // of the tokens that a tenant requests in a window in which it requests any, such as 99.9
	Headroom    float64      // the factor from the percentile to the limit, such as 1.5
	Window      limit.Micros // of the limits, in whole seconds
	Endpoints   int          // the most endpoints of a tier that get a limit of their own
	DefaultTier string       // of tenants without a tier, where configs do not define tiers
}

// Suggestion is one limit with what it is derived from.
type Suggestion struct {
	Tier     string  `json:"tier"`
	Endpoint string  `json:"endpoint,omitempty"` // "": all of the tenant's requests
	Name     string  `json:"name"`
	Limit    int64   `json:"limit"`
	Window   int64   `json:"window_size"` // in seconds
	Observed int64   `json:"percentile"`  // the tokens that it is derived from
	Most     int64   `json:"most"`        // the most tokens of a tenant in a window
	Tenants  int     `json:"tenants"`     // that have requests
	Requests int64   `json:"requests"`
	Touched  Touched `json:"would_have"`
}

// Touched is what a limit would have done to the same traffic.
type Touched struct {
	Tenants int   `json:"denied_tenants"`
	Denied  int64 `json:"denied_requests"`
}

// Collector counts the traffic of tenants. Make it with NewCollector.
type Collector struct {
	options   Options
	endpoints *endpoints
	tenants   map[string]bool
	cells     map[cellKey]*cell
	groups    map[group]*counts
}

// group is what one limit is suggested for.
type group struct{ tier, endpoint string }

type cellKey struct {
	tenant string
	group
}

type cell struct{ window, tokens int64 }

// counts holds what the tenants of a group have requested.
type counts struct {
	windows  map[int64]int64 // how many windows had how many tokens
	total    int64           // windows
	most     int64
	tenants  int
	requests int64
}

// NewCollector returns an empty collector.
func NewCollector(o Options) *Collector {
	return &Collector{
		options: o, endpoints: &endpoints{map[string]bool{}, map[string]map[string]bool{}}, tenants: map[string]bool{},
		cells: map[cellKey]*cell{}, groups: map[group]*counts{},
	}
}

// Add counts a request by its decision under a config that Probe has made. It leaves out requests without a tenant and
// requests that are exempt.
func (c *Collector) Add(r *replay.Request, d *decision.Decision) {
	if d.Identity.Tenant.Kind != identity.Tenant || len(d.Resolution.Bounds) == 0 {
		return
	}
	tenant, tier := d.Identity.Tenant.ID, d.Resolution.Tier
	if tier == unknownTier {
		tier = cmp.Or(d.Identity.Tier, c.options.DefaultTier)
	}
	cost := d.Resolution.Bounds[0].Cost
	c.tenants[tenant] = true
	c.count(cellKey{tenant, group{tier: tier}}, r.At, cost)
	if endpoint := c.endpoints.find(r.Method, r.Target); endpoint != "" {
		c.count(cellKey{tenant, group{tier, endpoint}}, r.At, cost)
	}
}

// count adds the tokens of a request. Requests come in the order of their times.
func (c *Collector) count(key cellKey, at limit.Micros, tokens int64) {
	g := c.groups[key.group]
	if g == nil {
		g = &counts{windows: map[int64]int64{}}
		c.groups[key.group] = g
	}
	g.requests++
	window := int64(at / c.options.Window)
	now := c.cells[key]
	switch {
	case now == nil:
		g.tenants++
		c.cells[key] = &cell{window, tokens}
	case now.window != window:
		g.add(now.tokens)
		*now = cell{window, tokens}
	default:
		now.tokens += tokens
	}
}

func (g *counts) add(tokens int64) {
	g.most = max(g.most, tokens)
	g.windows[rounded(tokens, 3)]++
	g.total++
}

// percentile returns the least number of tokens that so many percent of the windows do not exceed.
func (g *counts) percentile(percent float64) int64 {
	rank := int64(math.Ceil(float64(g.total) * percent / 100))
	for _, tokens := range slices.Sorted(maps.Keys(g.windows)) {
		if rank -= g.windows[tokens]; rank <= 0 {
			return min(tokens, g.most)
		}
	}
	return g.most
}

// rounded rounds a number up to so many digits.
func rounded(n int64, digits int) int64 {
	step := int64(1)
	for above := int64(math.Pow10(digits)); n/step >= above; {
		step *= 10
	}
	return (n + step - 1) / step * step
}

// Tenants returns how many tenants have requests.
func (c *Collector) Tenants() int { return len(c.tenants) }

// Suggest returns a suggestion for each tier and, behind it, for its busiest endpoints. It ends the windows that are
// being counted, so call it once.
func (c *Collector) Suggest() []Suggestion {
	for key, now := range c.cells {
		c.groups[key.group].add(now.tokens)
	}
	var all []Suggestion
	for g, counts := range c.groups {
		all = append(all, c.suggestion(g, counts))
	}
	slices.SortFunc(all, func(a, b Suggestion) int {
		return cmp.Or(cmp.Compare(a.Tier, b.Tier), min(len(a.Endpoint), 1)-min(len(b.Endpoint), 1),
			cmp.Compare(b.Requests, a.Requests), cmp.Compare(a.Endpoint, b.Endpoint))
	})
	return c.busiest(all)
}

// busiest returns the suggestions without the endpoints of each tier that are beyond the most. A name or an endpoint
// that no config can have is left out.
func (c *Collector) busiest(all []Suggestion) (kept []Suggestion) {
	endpoints, names := map[string]int{}, map[string]map[string]bool{}
	for _, s := range all {
		if len(s.Tier) > maxTier || s.Tier == "" {
			continue
		}
		if s.Endpoint != "" {
			if endpoints[s.Tier] == c.options.Endpoints {
				continue
			}
			endpoints[s.Tier]++
		}
		if names[s.Tier] == nil {
			names[s.Tier] = map[string]bool{}
		}
		s.Name = unusedName(nameOf(s.Endpoint), names[s.Tier])
		kept = append(kept, s)
	}
	return withoutFaults(kept)
}

// maxTier is how long the name of a tier may be, in bytes.
const maxTier = 64

// maxLimit is the greatest limit that a config may have.
const maxLimit = limit.MaxQuantity

func (c *Collector) suggestion(g group, n *counts) Suggestion {
	observed := n.percentile(c.options.Percentile)
	quantity := math.Min(math.Ceil(float64(observed)*c.options.Headroom), maxLimit)
	return Suggestion{
		Tier: g.tier, Endpoint: g.endpoint, Limit: max(min(rounded(int64(quantity), 2), maxLimit), 1),
		Window: int64(c.options.Window / limit.Second), Observed: observed, Most: n.most,
		Tenants: n.tenants, Requests: n.requests,
	}
}

// AddTouched sets what the suggestions would have done, from the report of a replay of the configs of Judge.
func AddTouched(list []Suggestion, r *replay.Report) {
	for i := range list {
		s := &list[i]
		for j := range r.Rows {
			row := &r.Rows[j]
			if row.Tier != s.Tier || row.Policy != s.Name || row.Endpoint != s.Endpoint || row.Denied == 0 {
				continue
			}
			s.Touched.Tenants++
			s.Touched.Denied += row.Denied
		}
	}
}

// Check returns an error if the options make no sense.
func (o *Options) Check() error {
	switch {
	case !(o.Percentile > 0 && o.Percentile <= 100):
		return errors.New("--percentile: must be above 0 and at most 100, such as 99.9")
	case !(o.Headroom >= 0.1 && o.Headroom <= 1000):
		return errors.New("--headroom: must be a factor from 0.1 to 1000, such as 1.5")
	case o.Endpoints < 0:
		return errors.New("--endpoints: must be 0 or more")
	case o.DefaultTier == "" || len(o.DefaultTier) > maxTier:
		return errors.New("--default-tier: must be the name of a tier, at most 64 bytes")
	}
	return nil
}

// unknownTier is the tier of a probe for tenants whose tier no config defines: it is the one that they claim.
const unknownTier = "(claimed)"

// Default returns a file with one config for all routes, for traffic without a decK file.
func Default() *routeconfig.File {
	return &routeconfig.File{Configs: []*routeconfig.Config{{Config: schema.Config{}.WithDefaults(), Where: "defaults"}}}
}

// Probe returns the configs of a file with one limit that denies nothing in each tier: their decisions show who a
// request is from, and what it costs.
func Probe(file *routeconfig.File) *routeconfig.File {
	return changed(file, func(config *schema.Config) {
		probe := []schema.Limit{{Name: "probe", Scope: "tenant", Limit: maxLimit, WindowSize: 1, Algorithm: "fixed_window"}}
		tiers := []schema.Tier{}
		for _, tier := range config.Tiers {
			tiers = append(tiers, schema.Tier{Name: tier.Name, Limits: probe})
		}
		if len(tiers) == 0 { // a second tier makes the plugin read which one a tenant claims
			tiers = append(tiers, schema.Tier{Name: unknownTier, Limits: probe}, schema.Tier{Name: "(none)"})
		}
		config.Tiers = tiers
	})
}

// Judge returns the configs of a file with the suggested limits in place of their own. The default tier is of configs
// without tiers.
func Judge(file *routeconfig.File, list []Suggestion, defaultTier string) *routeconfig.File {
	return changed(file, func(config *schema.Config) {
		defined := len(config.Tiers) > 0
		config.Tiers = tiersOf(list, config.Tiers)
		suggested := slices.ContainsFunc(config.Tiers, func(t schema.Tier) bool { return t.Name == defaultTier })
		if !defined && suggested {
			config.DefaultTier = defaultTier
		}
	})
}

// tiersOf returns the tiers of suggestions, in the order of a config's tiers, of which the first is the default.
func tiersOf(list []Suggestion, order []schema.Tier) []schema.Tier {
	tiers := []schema.Tier{}
	place := func(name string) *schema.Tier {
		i := slices.IndexFunc(tiers, func(t schema.Tier) bool { return t.Name == name })
		if i < 0 {
			i = len(tiers)
			tiers = append(tiers, schema.Tier{Name: name, Limits: []schema.Limit{}})
		}
		return &tiers[i]
	}
	for _, tier := range order {
		place(tier.Name)
	}
	for _, s := range list {
		l := schema.Limit{Name: s.Name, Scope: "tenant", Endpoint: s.Endpoint, Limit: s.Limit, WindowSize: s.Window}
		if s.Endpoint != "" {
			l.Scope = "tenant+endpoint"
		}
		tier := place(s.Tier)
		tier.Limits = append(tier.Limits, l)
	}
	return tiers
}

// changed returns the configs of a file after a change, without limits that are not of tenants.
func changed(file *routeconfig.File, change func(*schema.Config)) *routeconfig.File {
	next := *file
	next.Configs = nil
	for _, from := range file.Configs {
		config := *from
		change(&config.Config)
		config.Mode, config.MetaLimit = schema.ModeEnforce, 0
		config.OnMissingTenant, config.OnMissingUser = schema.MissingTenantSkip, schema.MissingUserCredential
		config.Anonymous, config.Global = schema.Anonymous{}, schema.Global{}
		next.Configs = append(next.Configs, &config)
	}
	return &next
}

// withoutFaults returns the suggestions without those that no config can have beside the others, such as patterns that
// are ambiguous.
func withoutFaults(list []Suggestion) []Suggestion {
	for {
		config := schema.Config{Tiers: tiersOf(list, nil)}.WithDefaults()
		err := config.Validate()
		if err == nil {
			_, err = resolve.FromConfig(config)
		}
		faults, ok := errors.AsType[schema.Faults](err)
		if !ok {
			return list
		}
		faulty := map[[2]string]bool{}
		for _, l := range config.Limits() {
			if slices.ContainsFunc(faults, func(f schema.Fault) bool { return strings.HasPrefix(f.Path, l.Path) }) {
				faulty[[2]string{l.List, l.Name}] = true
			}
		}
		all := len(list)
		list = slices.DeleteFunc(list, func(s Suggestion) bool { return faulty[[2]string{"tier " + s.Tier, s.Name}] })
		if len(list) == all {
			return list
		}
	}
}
