package share

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/soak"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/lease"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/memory"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/redis"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/fair"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/response"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// world is some nodes that share one limit, on a virtual clock. Requests go through the real
// decision path to a bucket that all nodes share, with or without leases in front. A board stands for Redis.
type world struct {
	t     testing.TB
	now   limit.Micros
	board *board
	nodes []*node
	next  int // node of the next request

	stalled bool // so much time passed between two periods of a node that messages may have ended
}

// node is one node of a world.
type node struct {
	decider admit.Decider
	shares  *Divider
	leases  *lease.Leases // nil: none
	dead    bool
	offset  limit.Micros // of its clock
	phase   limit.Micros // of its periods

	stepped time.Time // when a period ended last
}

// rules are what a world limits.
type rules struct {
	nodes  int
	leased bool
	unfair bool // the bucket alone
	burst  int64
	mode   string
	own    int64 // a limit of each tenant per second; 0: none
	spread bool  // the clocks of nodes differ

	defaultTier string // "": essentials
	weight      int64  // of the tier enterprise; 0: 3

	second     int64  // another fair limit per second; 0: none
	secondMode string // of that limit

	tenants int  // bound of tenants; 0: the default
	redis   bool // messages go through Redis, in place of the board
}

// rate is the limit per second. The promises are about parts of it.
var rate = soak.Count(100, 1000)

// rushing is how much a tenant demands that rushes, per second.
var rushing = part(float64(soak.Count(10, 25)))

func newWorld(t testing.TB, r rules) *world {
	t.Helper()
	config := schema.Config{
		Tiers:       []schema.Tier{{Name: "essentials"}, {Name: "enterprise"}},
		DefaultTier: r.defaultTier,
		Global: schema.Global{Limits: []schema.Limit{{
			Name: "all", Scope: schema.ScopeGlobal, Limit: int64(rate), WindowSize: 1, Burst: r.burst, Mode: r.mode,
			Fair: &schema.Fair{Weights: map[string]int64{"enterprise": cmp.Or(r.weight, 3)}},
		}}},
	}
	if r.second > 0 {
		config.Global.Limits = append(config.Global.Limits, schema.Limit{
			Name: "second", Scope: schema.ScopeGlobal, Limit: r.second, WindowSize: 1, Mode: r.secondMode, Fair: &schema.Fair{},
		})
	}
	if r.own > 0 {
		own := schema.Limit{Name: "own", Scope: schema.ScopeTenant, Limit: r.own, WindowSize: 1, Burst: max(r.own/10, 1)}
		for i := range config.Tiers {
			config.Tiers[i].Limits = []schema.Limit{own}
		}
	}
	config = config.WithDefaults()
	require.NoError(t, config.Validate())
	plan, err := resolve.ForCallers(config)
	require.NoError(t, err)
	w := &world{t: t, now: 1000 * limit.Second}
	w.board = &board{
		world: w, leader: map[policy.Key]message{}, caps: map[policy.Key]message{},
		reports: map[policy.Key]map[string]message{},
	}
	bucket := memory.New(memory.Options{Now: func() limit.Micros { return w.now }})
	var server *redistest.Server
	if r.redis {
		server = redistest.Single(t)
	}
	for i := range max(r.nodes, 1) {
		n := &node{phase: limit.Micros(i) * 37_000 % period}
		if r.spread {
			n.offset = limit.Micros(i) * 3600 * limit.Second
		}
		now := func() limit.Micros { return w.now + n.offset }
		o := Options{Now: now, Node: string(rune('a' + i)), Exchange: w.board, MaxTenants: r.tenants}
		switch {
		case r.nodes == 0:
			o.Exchange = nil
		case r.redis:
			o.Exchange = throughRedis(t, server)
		}
		n.shares = New(o)
		n.decider.Now, n.decider.Buckets, n.decider.Renderer = now, bucket, response.New(config, nil)
		if !r.unfair {
			n.decider.Shares = n.shares
		}
		if r.leased {
			n.leases = lease.New(bucket, lease.Options{Now: now, Nodes: func(string) int { return max(r.nodes, 1) }})
			n.decider.Buckets = n.leases.Store(bucket)
		}
		n.decider.Policies.Store(plan)
		w.nodes = append(w.nodes, n)
	}
	return w
}

// throughRedis returns an exchange over a connection of its own.
func throughRedis(t testing.TB, server *redistest.Server) Exchange {
	t.Helper()
	registry := redis.NewRegistry(slog.New(slog.DiscardHandler), nil)
	store, release, err := registry.Open(schema.Redis{Socket: server.Socket, ReadTimeout: 60_000})
	require.NoError(t, err)
	t.Cleanup(release)
	return store
}

// client is a tenant that sends requests at an even rate, from an instant on.
type client struct {
	tenant, tier string
	ip           string // of a client without a tenant
	perSecond    float64
	from         limit.Micros // since the start of the run
	until        limit.Micros // 0: to the end
	lasts, every limit.Micros // it sends in pulses, from on; 0: at all times

	due      float64
	sent     int
	admitted []int // in each second
	exchange admit.Exchange
}

// sends reports whether the client sends requests, so long after the start.
func (c *client) sends(at limit.Micros) bool {
	return at >= c.from && (c.until == 0 || at < c.until) && (c.every == 0 || (at-c.from)%c.every < c.lasts)
}

// total returns how many requests were admitted in the seconds from one to another, 0: the last.
func (c *client) total(from, to int) (sum int) {
	for _, n := range c.admitted[from:cmp.Or(to, len(c.admitted))] {
		sum += n
	}
	return sum
}

// run lets clients send for some seconds. each is called every millisecond; nil: nothing is.
func (w *world) run(seconds int, each func(at limit.Micros), clients ...*client) {
	w.t.Helper()
	began := w.now
	for _, c := range clients {
		c.admitted = make([]int, seconds)
	}
	const step = limit.Second / 1000
	for at := limit.Micros(0); at < limit.Micros(seconds)*limit.Second; at += step {
		w.now = began + at
		if each != nil {
			each(at)
		}
		w.step()
		for _, c := range clients {
			if !c.sends(at) {
				continue
			}
			for c.due += c.perSecond / 1000; c.due >= 1; c.due-- {
				c.sent++
				if w.send(c) {
					c.admitted[at/limit.Second]++
				}
			}
		}
	}
	w.now = began + limit.Micros(seconds)*limit.Second
}

// step ends the periods that are due, and renews leases.
func (w *world) step() {
	for _, n := range w.nodes {
		if n.dead {
			continue
		}
		if (w.now-n.phase)%period == 0 {
			n.shares.Step(w.t.Context())
			now := time.Now()
			w.stalled = w.stalled || !n.stepped.IsZero() && now.Sub(n.stepped) > 500*time.Millisecond
			n.stepped = now
		}
		if n.leases != nil && w.now%2000 == 0 {
			n.leases.Step(w.t.Context(), w.now+n.offset)
		}
	}
}

// request returns a request of the client.
func (c *client) request() *admit.CallerRequest {
	return &admit.CallerRequest{
		Caller: identity.Caller{Tenant: c.tenant, Tier: cmp.Or(c.tier, "essentials")}, IP: c.ip,
	}
}

// send sends a request to the next node that lives, and reports whether it is admitted.
func (w *world) send(c *client) bool {
	w.t.Helper()
	n := w.nodes[w.next%len(w.nodes)]
	for w.next++; n.dead; w.next++ {
		n = w.nodes[w.next%len(w.nodes)]
	}
	require.NoError(w.t, n.decider.Admit(w.t.Context(), c.request(), &c.exchange))
	return !c.exchange.Decision.Denied()
}

// board keeps the messages of nodes, as the script demand.lua does in Redis.
type board struct {
	world       *world
	unavailable bool

	mu           sync.Mutex // a node exchanges the messages of several limits at once
	leader, caps map[policy.Key]message
	reports      map[policy.Key]map[string]message
}

type message struct {
	text []byte
	ends limit.Micros
}

var errUnavailable = errors.New("the board is unavailable")

// ReportDemand implements Exchange.
func (b *board) ReportDemand(_ context.Context, key *policy.Key, node string, report []byte) (fair.Answer, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.unavailable {
		return fair.Answer{}, errUnavailable
	}
	now := b.world.now
	if b.reports[*key] == nil {
		b.reports[*key] = map[string]message{}
	}
	b.reports[*key][node] = message{report, now + limit.Second}
	a := fair.Answer{}
	if caps := b.caps[*key]; caps.ends > now {
		a.Caps, a.Lasts = caps.text, time.Duration(caps.ends-now)*time.Microsecond
	}
	if leader := b.leader[*key]; leader.ends > now && string(leader.text) != node {
		return a, nil
	}
	a.Leads = true
	b.leader[*key] = message{[]byte(node), now + limit.Second*6/10}
	for _, one := range b.reports[*key] {
		if one.ends > now {
			a.Reports = append(a.Reports, one.text)
		}
	}
	return a, nil
}

// PublishCaps implements Exchange.
func (b *board) PublishCaps(_ context.Context, key *policy.Key, node string, caps []byte) (bool, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.unavailable {
		return false, errUnavailable
	}
	if leader := b.leader[*key]; leader.ends <= b.world.now || string(leader.text) != node {
		return false, nil
	}
	b.caps[*key] = message{caps, b.world.now + limit.Second}
	return true, nil
}
