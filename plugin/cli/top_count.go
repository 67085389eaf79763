package cli

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strconv"
	"time"
)

// The orders of tenants.
const (
	byRequests = "requests"
	byDenied   = "denied"
	byNear     = "near"
)

// rate is how often something happens in a second, or how many of a hundred. It has as many decimals as are of use, so
// that equal rates are equal in whatever order they were summed.
type rate float64

func (r rate) rounded() float64 { return math.Round(float64(r)*1000) / 1000 }

func (r rate) String() string { return strconv.FormatFloat(r.rounded(), 'f', 1, 64) }

// MarshalJSON implements json.Marshaler.
func (r rate) MarshalJSON() ([]byte, error) {
	return strconv.AppendFloat(nil, r.rounded(), 'f', -1, 64), nil
}

// traffic is what was requested, and how much of it denied.
type traffic struct {
	Requests      rate `json:"requests_per_second"`
	Denied        rate `json:"denied_per_second"`
	DeniedPercent rate `json:"denied_percent"` // of the requests
}

// add adds requests of one result.
func (t *traffic) add(result string, r rate) {
	t.Requests += r
	if result == "hard_throttled" {
		t.Denied += r
	}
	t.DeniedPercent = 100 * t.Denied / t.Requests
}

// topView is what one refresh shows.
type topView struct {
	At           time.Time   `json:"at"` // of the reading
	Total        traffic     `json:"total"`
	Tenants      []topTenant `json:"tenants"`
	MoreTenants  int         `json:"more_tenants"` // that are not shown
	Policies     []topPolicy `json:"policies"`     // that deny, or would
	MorePolicies int         `json:"more_policies"`
	Nodes        []topNode   `json:"nodes"`
}

// topTenant is a tenant that sent requests, or that has used something of a limit.
type topTenant struct {
	Tenant   string   `json:"tenant"`
	Tier     string   `json:"tier,omitempty"` // of most requests
	Traffic  traffic  `json:"traffic"`
	Nearest  *nearest `json:"nearest,omitempty"`
	Endpoint string   `json:"endpoint,omitempty"` // of most requests

	tiers, endpoints map[string]rate
}

// nearest is the limit of which a tenant has used most.
type nearest struct {
	Policy string `json:"policy"`
	Used   rate   `json:"used_ratio"` // 1: all of it
}

// topPolicy is a policy that denies, or would if it were enforced.
type topPolicy struct {
	Policy       string `json:"policy"`
	Scope        string `json:"scope"`
	Tier         string `json:"tier"`
	Denied       rate   `json:"denied_per_second"`
	ShadowDenied rate   `json:"shadow_denied_per_second"`
}

// topNode is a node by its last answer; of a node that does not answer, only the error.
type topNode struct {
	Node       string   `json:"node"`
	Error      string   `json:"error,omitempty"`
	Restarted  bool     `json:"restarted"`         // since the answer before
	Traffic    *traffic `json:"traffic,omitempty"` // nil: not known
	Unverified *rate    `json:"unverified_per_second,omitempty"`
	Degraded   []string `json:"degraded_stores"`
	Version    *int64   `json:"snapshot_version,omitempty"`
	Age        *rate    `json:"snapshot_age_seconds,omitempty"`
	Connected  *bool    `json:"policies_connected,omitempty"`
}

// restarted reports whether the last two answers come from two processes.
func (n *watched) restarted() bool {
	return n.before != nil && n.before.born != n.last.born && n.before.born > 0 && n.last.born > 0
}

// rates returns how often each series counted, between the last two answers; those that did not count are left out.
// nil: there is nothing to compare with.
//
// Every series begins at 0 with its process, and again when a tenant gets its label back. So what is new counts from 0,
// and what is less than it was, too, as in Prometheus's rate(): what was counted between the answer before and the
// restart is lost.
func (n *watched) rates() map[counter]rate {
	if n.err != nil || n.before == nil {
		return nil
	}
	elapsed := n.last.at.Sub(n.before.at).Seconds()
	if elapsed <= 0 {
		return nil
	}
	rates := map[counter]rate{}
	for series, value := range n.last.counters {
		was := n.before.counters[series]
		if value < was || n.restarted() {
			was = 0
		}
		if value > was {
			rates[series] = rate((value - was) / elapsed)
		}
	}
	return rates
}

// newTopView merges what nodes say. At most rows tenants and rows policies are shown.
func newTopView(at time.Time, nodes []*watched, order string, rows int) *topView {
	m := merger{tenants: map[string]*topTenant{}, policies: map[topPolicy]*topPolicy{}}
	v := &topView{At: at}
	for _, n := range nodes {
		v.Nodes = append(v.Nodes, m.node(n))
	}
	v.Total = m.total
	for _, t := range m.tenants {
		t.Tier, t.Endpoint = most(t.tiers), most(t.endpoints)
		v.Tenants = append(v.Tenants, *t)
	}
	for _, p := range m.policies {
		v.Policies = append(v.Policies, *p)
	}
	slices.SortFunc(v.Tenants, tenantOrders[order])
	slices.SortFunc(v.Policies, moreDenials)
	v.Tenants, v.MoreTenants = first(v.Tenants, rows)
	v.Policies, v.MorePolicies = first(v.Policies, rows)
	return v
}

// merger adds up what several nodes say.
type merger struct {
	total    traffic
	tenants  map[string]*topTenant
	policies map[topPolicy]*topPolicy // by what names them
}

// node adds a node. One that does not answer adds nothing.
func (m *merger) node(n *watched) topNode {
	shown := topNode{Node: n.address, Degraded: []string{}}
	if n.err != nil {
		shown.Error = n.err.Error()
		return shown
	}
	shown.Restarted = n.restarted()
	shown.Degraded = listed(n.last.degraded)
	shown.Version, shown.Age, shown.Connected = n.last.version, (*rate)(n.last.age), n.last.connected
	for key, used := range n.last.usage {
		m.used(key, rate(used))
	}
	rates := n.rates()
	if rates == nil {
		return shown
	}
	shown.Traffic, shown.Unverified = new(traffic), new(rate)
	for series, r := range rates {
		switch series.family {
		case requestsFamily:
			shown.Traffic.add(series.result, r)
			m.request(series, r)
		case denialsFamily:
			m.policy(series).Denied += r
		case shadowFamily:
			m.policy(series).ShadowDenied += r
		case unverifiedFamily:
			*shown.Unverified += r
		}
	}
	return shown
}

func (m *merger) request(series counter, r rate) {
	m.total.add(series.result, r)
	t := m.tenant(series.tenant)
	t.Traffic.add(series.result, r)
	t.tiers[series.tier] += r
	t.endpoints[series.endpoint] += r
}

// used takes the greatest use of a limit. Nodes share the bucket, and each knows what it saw last.
func (m *merger) used(of usageOf, used rate) {
	if used == 0 {
		return
	}
	t := m.tenant(of.tenant)
	if t.Nearest == nil || used > t.Nearest.Used || (used == t.Nearest.Used && of.policy < t.Nearest.Policy) {
		t.Nearest = &nearest{of.policy, used}
	}
}

func (m *merger) tenant(name string) *topTenant {
	t, ok := m.tenants[name]
	if !ok {
		t = &topTenant{Tenant: name, tiers: map[string]rate{}, endpoints: map[string]rate{}}
		m.tenants[name] = t
	}
	return t
}

func (m *merger) policy(series counter) *topPolicy {
	name := topPolicy{Policy: series.policy, Scope: series.scope, Tier: series.tier}
	p, ok := m.policies[name]
	if !ok {
		p = &name
		m.policies[name] = p
	}
	return p
}

// tenantOrders compare two tenants: below 0 when a stands above b. The last word is the name's.
var tenantOrders = map[string]func(a, b topTenant) int{
	byRequests: func(a, b topTenant) int {
		return cmp.Or(
			descending(a.Traffic.Requests, b.Traffic.Requests),
			descending(a.used(), b.used()),
			cmp.Compare(a.Tenant, b.Tenant),
		)
	},
	byDenied: func(a, b topTenant) int {
		return cmp.Or(
			descending(a.Traffic.Denied, b.Traffic.Denied),
			descending(a.Traffic.Requests, b.Traffic.Requests),
			cmp.Compare(a.Tenant, b.Tenant),
		)
	},
	byNear: func(a, b topTenant) int {
		return cmp.Or(
			descending(a.used(), b.used()),
			descending(a.Traffic.Requests, b.Traffic.Requests),
			cmp.Compare(a.Tenant, b.Tenant),
		)
	},
}

func (t *topTenant) used() rate {
	if t.Nearest == nil {
		return 0
	}
	return t.Nearest.Used
}

func moreDenials(a, b topPolicy) int {
	return cmp.Or(descending(a.Denied, b.Denied), descending(a.ShadowDenied, b.ShadowDenied),
		cmp.Compare(a.Policy, b.Policy), cmp.Compare(a.Scope, b.Scope), cmp.Compare(a.Tier, b.Tier))
}

func descending(a, b rate) int { return cmp.Compare(b.rounded(), a.rounded()) }

// most returns the name with the highest rate, the first of several, or "" if there are none.
func most(rates map[string]rate) string {
	best := ""
	for _, name := range slices.Sorted(maps.Keys(rates)) {
		if best == "" || rates[name].rounded() > rates[best].rounded() {
			best = name
		}
	}
	return best
}

// first returns the beginning of a list, never nil, and how many are left.
func first[T any](list []T, most int) (begin []T, left int) {
	n := min(len(list), most)
	return listed(list[:n]), len(list) - n
}

// answering returns how many nodes answer.
func (v *topView) answering() (n int) {
	for i := range v.Nodes {
		if v.Nodes[i].Error == "" {
			n++
		}
	}
	return n
}
