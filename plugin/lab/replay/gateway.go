package replay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/memory"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/response"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/node/routeconfig"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// ErrUncovered is the error of a request on whose route Kong does not run the plugin.
var ErrUncovered = errors.New("no config of the plugin applies to the route")

// UnmatchedError is the error of a request without a route in its log, if several routes may be its own.
type UnmatchedError struct {
	Routes []string // in words: each with what it matches that the log lacks
}

func (e *UnmatchedError) Error() string {
	return "several routes match: " + strings.Join(e.Routes, ", ")
}

// GatewayOptions configures a gateway.
type GatewayOptions struct {
	Rows *policy.Snapshot // beside the configs; nil: none

	// Sources replace the sources of all configs, where they are not nil: tenant_from, user_from and tier_from.
	TenantFrom, UserFrom, TierFrom []string
	StatesTenants                  bool // the logs name the tenants themselves, see Log.StatesTenants

	Route string // decides all requests as of this route; "": each has its own
}

const maxBuckets = 2_000_000

// Gateway decides requests as the plugin in Kong would. Its clock shows the time of the request, and its buckets are in
// memory: no lease, no fair share and no outage changes a decision. It serves one caller at a time.
type Gateway struct {
	Faults      []policy.Fault // rows that a config cannot apply
	WithoutTier int64          // requests of tenants that the default tier decides, because no tier is known

	file     *routeconfig.File
	options  GatewayOptions
	now      limit.Micros
	sweepAt  limit.Micros
	buckets  *memory.Store
	meta     *memory.Store
	deciders map[*routeconfig.Config]*admit.Decider
	exchange admit.Exchange
	tiers    map[*admit.Decider]map[string]string // of the tenants that logs state, by the file's consumers
}

// NewGateway returns the gateway of a decK file. Its error lists sources of names that no log carries.
func NewGateway(file *routeconfig.File, o GatewayOptions) (*Gateway, error) {
	g := &Gateway{
		file: file, options: o,
		deciders: map[*routeconfig.Config]*admit.Decider{}, tiers: map[*admit.Decider]map[string]string{},
	}
	clock := func() limit.Micros { return g.now }
	g.buckets = memory.New(memory.Options{Now: clock, MaxBuckets: maxBuckets})
	g.meta = memory.New(memory.Options{Now: clock, MaxBuckets: maxBuckets})
	var faults []error
	for _, config := range file.Configs {
		decider, err := g.newDecider(config)
		g.deciders[config] = decider
		faults = append(faults, err)
	}
	return g, errors.Join(faults...)
}

func (g *Gateway) newDecider(from *routeconfig.Config) (*admit.Decider, error) {
	config := from.Config
	ofTokens := g.setSources(&config, from.Where)
	compile := resolve.FromConfig
	if g.options.StatesTenants {
		compile = resolve.ForCallers
	}
	plan, err := compile(config)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", from.Where, err)
	}
	if g.options.Rows != nil {
		plan = plan.With(g.options.Rows)
		g.Faults = append(g.Faults, plan.Faults()...)
	}
	if plan.Rules.Required&identity.TokenFact != 0 {
		return nil, errors.Join(ofTokens...)
	}
	decider := &admit.Decider{
		Now: func() limit.Micros { return g.now }, Buckets: withoutSlots{g.buckets},
		Renderer:   response.New(config, func(int64) int64 { return 0 }),
		FailClosed: config.OnInternalError == schema.FailClosed,
	}
	decider.Policies.Store(plan)
	if config.MetaLimit > 0 {
		if decider.Meta, err = admit.NewMeta(config.MetaLimit, config.Namespace, g.meta); err != nil {
			return nil, fmt.Errorf("%s: meta_limit: %w", from.Where, err)
		}
	}
	if g.options.StatesTenants {
		if g.tiers[decider], err = tenantTiers(g.file, config); err != nil {
			return nil, fmt.Errorf("%s: %w", from.Where, err)
		}
	}
	return decider, nil
}

// setSources replaces the sources of a config by those that are given. It returns the errors of those that read names
// from tokens, with the place of the config.
func (g *Gateway) setSources(config *schema.Config, where string) (ofTokens []error) {
	for _, list := range [...]struct {
		name    string
		sources *[]string
		given   []string
	}{
		{"tenant", &config.TenantFrom, g.options.TenantFrom},
		{"user", &config.UserFrom, g.options.UserFrom},
		{"tier", &config.TierFrom, g.options.TierFrom},
	} {
		if list.given != nil {
			*list.sources = list.given
		}
		for _, source := range *list.sources {
			if strings.HasPrefix(source, "jwt.") {
				ofTokens = append(ofTokens, fmt.Errorf("%[3]s: %[1]s_from: %[2]s: logs carry no tokens: say what to use "+
					"with --%[1]s-from, such as --%[1]s-from consumer.custom_id", list.name, source, where))
			}
		}
	}
	return ofTokens
}

// HeadersOf returns the names of the request headers that a gateway of these configs may read, and so the logs need.
func HeadersOf(file *routeconfig.File, o GatewayOptions) []string {
	headers := append(file.RequestHeaders(), originHeader, preflightHeader)
	sources := slices.Concat(o.TenantFrom, o.UserFrom, o.TierFrom)
	for _, config := range file.Configs {
		headers = append(headers, config.TrustedHeaders...)
		sources = slices.Concat(sources, config.TenantFrom, config.UserFrom, config.TierFrom)
	}
	for _, source := range sources {
		if name, ok := strings.CutPrefix(source, "header."); ok {
			headers = append(headers, name)
		}
	}
	return headers
}

// Decide decides a request at its time. The decision is valid until the next call. Requests must come in the order of
// their times. The error of a request that no config covers is ErrUncovered, and that of one whose route is not found
// an UnmatchedError.
func (g *Gateway) Decide(ctx context.Context, r *Request) (*decision.Decision, error) {
	if r.Route == nil || g.options.Route != "" {
		if err := g.findRoute(r); err != nil {
			return nil, err
		}
	}
	decider := g.deciders[g.file.For(r.Route.Name, r.Route.Service)]
	if decider == nil {
		return nil, ErrUncovered
	}
	if g.now = max(g.now, r.At); g.now >= g.sweepAt { // the clock never steps back
		g.sweepAt = g.now + sweepEvery
		g.buckets.Sweep(g.now)
		g.meta.Sweep(g.now)
	}
	g.complete(r, decider)
	if err := decider.Admit(ctx, r, &g.exchange); err != nil {
		return nil, err
	}
	g.countWithoutTier(decider, &g.exchange.Decision)
	return &g.exchange.Decision, nil
}

// findRoute sets the route of a request to the one that decides all requests, or else to the one by which Kong routes
// a request whose log does not name it. It may be none.
func (g *Gateway) findRoute(r *Request) error {
	r.Route = &Route{Name: g.options.Route}
	if r.Route.Name == "" {
		var possible []string
		r.Route.Name, possible = g.file.RouteOf(&routeconfig.Request{
			Method: r.Method, Path: identity.NormalizePath(r.Target), Host: r.headerValue(hostHeader), Header: r.loggedHeader,
		})
		if len(possible) > 0 {
			return &UnmatchedError{possible}
		}
	}
	return nil
}

// withoutSlots admits every request under limits of concurrency: a log does not say when it ended.
type withoutSlots struct{ admit.Buckets }

func (b withoutSlots) Take(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error {
	for i := range bounds {
		if bounds[i].Policy.Limit.IsConcurrency() {
			bounds[i].Cost = 0
		}
	}
	return b.Buckets.Take(ctx, bounds, statuses)
}

// sweepEvery is how often a gateway drops expired buckets, in the time of the log.
const sweepEvery = 600 * limit.Second

// Evicted returns how many buckets were dropped because there were too many. After that, too few requests are denied.
func (g *Gateway) Evicted() uint64 { return g.buckets.Stats().Evicted }

// Notes returns what the decisions leave out that the plugin does.
func (g *Gateway) Notes() (notes []string) {
	for _, decider := range g.deciders {
		for _, p := range decider.Policies.Load().Policies() {
			if p.Settle != nil {
				notes = append(notes, fmt.Sprintf("policy %s settles: a request is charged what it reserves", p.Name))
			}
			if p.Limit.IsConcurrency() {
				const note = "policy %s counts requests at once: a log does not say how long they last, so it denies none here"
				notes = append(notes, fmt.Sprintf(note, p.Name))
			}
			if p.Fair != nil {
				notes = append(notes, fmt.Sprintf("policy %s is shared fairly: who comes first is served first here", p.Name))
			}
		}
	}
	slices.Sort(notes)
	return slices.Compact(notes)
}

// complete adds what the log of a request lacks and the decK file has: names and tags of the consumer, or the tier of a
// tenant that the log states. What the log has stays: of two tags for a tier, the first counts.
func (g *Gateway) complete(r *Request, decider *admit.Decider) {
	if r.Caller != nil && r.Caller.Tier == "" {
		r.Caller.Tier = g.tiers[decider][r.Caller.Tenant]
	}
	if r.Consumer == nil {
		return
	}
	if c, inFile := r.Consumer, g.file.Consumer(r.Consumer); inFile != nil {
		c.ID, c.Username = cmp.Or(c.ID, inFile.ID), cmp.Or(c.Username, inFile.Username)
		c.CustomID, c.Tags = cmp.Or(c.CustomID, inFile.CustomID), append(c.Tags, inFile.Tags...)
	}
}

// tenantTiers returns the tiers of tenants by the consumers of a file. It leaves out tenants of several tiers.
func tenantTiers(file *routeconfig.File, config schema.Config) (map[string]string, error) {
	list, err := file.ConsumerTiers(&config)
	tiers := map[string]string{}
	for _, c := range list {
		if tier, seen := tiers[c.Tenant]; seen && tier != c.Tier {
			c.Tier = ""
		}
		tiers[c.Tenant] = c.Tier
	}
	return tiers, err
}

// countWithoutTier counts a request of a tenant whose tier is not known, where tiers differ.
func (g *Gateway) countWithoutTier(decider *admit.Decider, d *decision.Decision) {
	plan := decider.Policies.Load()
	ofTenant := d.Identity.Tenant.Kind == identity.Tenant && !d.Resolution.Exempt
	if ofTenant && d.Identity.Tier == "" && len(plan.Rules.Tier) > 0 &&
		plan.TierFrom(&d.Identity) == resolve.TierOfDefault {
		g.WithoutTier++
	}
}
