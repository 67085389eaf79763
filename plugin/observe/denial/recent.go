package denial

import (
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

const (
	// maxRecent bounds the recent denials that wait to be taken, without those of others.
	maxRecent = 300
	// maxRecentOthers bounds those of others: one for each tenant, and one for all.
	maxRecentOthers = 100
	// maxRecentTenant bounds those of one tenant, and maxRecentCause those of one cause of a tenant.
	maxRecentTenant = 10
	maxRecentCause  = 3
	// maxRecentIDs bounds the ids of the requests of a recent denial, and maxRecentID the bytes of one. Postgres takes no
	// more.
	maxRecentIDs, maxRecentID = 32, 64
	// othersReason is the reason of recent denials that count what has no place of its own.
	othersReason = "others"
)

// Recent counts denials of a tenant by one policy at about one time, for people to read. As JSON it is a row of
// report_recent_denials, which takes UTF-8 without NUL.
type Recent struct {
	ID            string    `json:"event"` // unique within the node
	At            time.Time `json:"-"`     // of the last denial
	Age           int64     `json:"age"`   // µs since then, when it is reported; set by the reporter
	Tenant        string    `json:"tenant"`
	Endpoint      string    `json:"endpoint"`
	Policy        string    `json:"policy"`                // "", as Scope: no policy denied, or several
	Scope         string    `json:"scope"`                 // with Limit and WindowSeconds
	Limit         int64     `json:"limit,omitempty"`       // tokens
	WindowSeconds int64     `json:"window_size,omitempty"` // of the window or period then; 0: it counts requests at once
	Reason        string    `json:"reason"`
	Shadow        bool      `json:"shadow"`
	Count         uint64    `json:"count"`
	TenantCount   uint64    `json:"tenant_count"`          // of Count: those that the tenant may read
	User          string    `json:"user"`                  // as in a line; "" if they differ
	IP            string    `json:"ip"`                    // likewise
	RetryAfter    int64     `json:"retry_after,omitempty"` // seconds; 0: unknown, or no wait helps

	decision.Denier          // of one of the last denials, as RetryAfter
	RequestIDs      []string `json:"request_ids,omitempty"` // of the first requests: ASCII, at most 32 of at most 64 bytes
	HiddenIDs       []string `json:"hidden_ids,omitempty"`  // of RequestIDs, those that the tenant may not read
}

type recentKey struct {
	key
	endpoint string
}

// sample holds recent denials until they are taken. However many denials there are, it has a bounded number of them:
// the first of each cause one by one, and one that counts those after them.
type sample struct {
	mu     sync.Mutex
	number uint64
	rows   []*Recent
	causes map[recentKey][]*Recent
	org    map[string]int     // how many rows a tenant has
	others map[string]*Recent // by tenant; "" counts those of tenants without a place
}

// TakeRecent returns the recent denials since the last call. It returns none unless Options.Recent is set. A second is
// in it once it is over.
func (r *Recorder) TakeRecent() []*Recent {
	if r.recent == nil {
		return nil
	}
	r.recent.mu.Lock()
	defer r.recent.mu.Unlock()
	rows := r.recent.rows
	r.recent.rows, r.recent.causes, r.recent.org, r.recent.others = nil, nil, nil, nil
	return rows
}

// addRecent adds the denials of a finished group to the recent ones.
func (r *Recorder) addRecent(g *group) {
	s := r.recent
	k := recentKey{g.key, g.endpoint}
	if g.mixed&endpointField != 0 {
		k.endpoint = ""
	}
	tenant, _ := r.displayName(identity.Name{Kind: g.key.orgKind, ID: g.key.org}, g.key.org)
	s.mu.Lock()
	defer s.mu.Unlock()
	same := s.causes[k]
	hasRoom := len(s.rows)-len(s.others) < maxRecent && s.org[tenant] < maxRecentTenant
	switch {
	case k.isOthers:
		s.addOthers(r, "", g)
	case hasRoom && len(same) < maxRecentCause:
		row := r.newRecent(g, k, tenant)
		if s.causes == nil {
			s.causes, s.org = map[recentKey][]*Recent{}, map[string]int{}
		}
		s.causes[k] = append(same, row)
		s.org[tenant]++
		s.add(r, row)
	case len(same) > 0:
		user, ip := r.personOf(g)
		same[len(same)-1].merge(g, user, ip)
	default:
		s.addOthers(r, tenant, g)
	}
}

// addOthers counts the denials of a group without a place of their own, by tenant or with those of all tenants.
func (s *sample) addOthers(r *Recorder, tenant string, g *group) {
	if s.others[tenant] == nil && len(s.others) >= maxRecentOthers {
		tenant = ""
	}
	if s.others == nil {
		s.others = map[string]*Recent{}
	}
	row := s.others[tenant]
	if row == nil {
		row = &Recent{Tenant: tenant, Reason: othersReason}
		s.others[tenant] = row
		s.add(r, row)
	}
	row.merge(g, "", "")
	if tenant == "" {
		row.TenantCount = 0
	}
}

func (s *sample) add(r *Recorder, row *Recent) {
	s.number++
	row.ID = r.epoch + "-r" + strconv.FormatUint(s.number, 10)
	s.rows = append(s.rows, row)
}

func (r *Recorder) newRecent(g *group, k recentKey, tenant string) *Recent {
	user, ip := r.personOf(g)
	row := &Recent{
		Tenant: tenant, Endpoint: k.endpoint, Policy: clip(k.policy), Reason: reasonName(k.reason),
		Shadow: k.mode != policy.Enforce, User: user, IP: ip,
	}
	if g.scope != 0 {
		rate := g.rate()
		if row.Scope, row.Limit = g.scope.String(), rate.Quantity; !g.limit.IsConcurrency() {
			row.WindowSeconds = rate.WindowSeconds
		}
	}
	row.merge(g, user, ip)
	return row
}

// personOf returns the user and the address of all denials of a group, as a line shows them.
func (r *Recorder) personOf(g *group) (user, ip string) {
	if g.mixed&userField == 0 {
		user, _ = r.displayName(g.user, g.key.org)
	}
	if g.mixed&ipField == 0 {
		ip, _ = r.displayName(identity.Name{Kind: identity.IP, ID: g.ip}, g.key.org)
	}
	return user, ip
}

// merge counts the denials of a group, which have a user and an address.
func (d *Recent) merge(g *group, user, ip string) {
	d.Count += g.count
	d.TenantCount += g.readable
	if at := time.UnixMicro(g.last); at.After(d.At) {
		d.At = at
	}
	if d.User != user {
		d.User = ""
	}
	if d.IP != ip {
		d.IP = ""
	}
	if d.Reason == othersReason {
		return
	}
	if g.wait > 0 && g.wait != limit.Never {
		d.RetryAfter = g.wait.Seconds()
	}
	d.Denier = g.denier()
	for _, id := range g.requestIDs {
		isShort := len(id) <= maxRecentID && !strings.ContainsFunc(id, func(r rune) bool { return r <= ' ' || r > '~' })
		if len(d.RequestIDs) < maxRecentIDs && isShort { // then Postgres stores it as it is
			d.RequestIDs = append(d.RequestIDs, id)
			if slices.Contains(g.hiddenIDs, id) {
				d.HiddenIDs = append(d.HiddenIDs, id)
			}
		}
	}
}

// denier returns what denied the first request of a group.
func (g *group) denier() decision.Denier {
	d := decision.Denier{
		Tier: g.tier, PolicyFor: clip(g.policyFor), PolicyVersion: unlessZero(g.policyVersion),
		Override: unlessZero(g.override), Penalty: unlessZero(g.penalty),
	}
	if g.scope != 0 {
		d.PolicyID, d.Capacity, d.Cost, d.Unit = unlessZero(g.policyID), &g.capacity, &g.cost, g.unit
		if g.remaining >= 0 {
			d.Remaining = &g.remaining
		}
	}
	return d
}

// unlessZero returns a number that 0 stands for none of.
func unlessZero(n int64) *int64 {
	if n == 0 {
		return nil
	}
	return &n
}

// isOwn reports whether a bound's bucket belongs to the request's tenant alone.
func isOwn(b *policy.Bound) bool {
	return b.Policy.Scope.OfTenant() && b.Key.Group != policy.ByIP
}

// tenantReads reports whether the tenant may read that a bound denies. Of a limit that it shares with others it may not
// if the limit is in shadow mode, or if a limit of its own denies too: that would show how much is left there.
func tenantReads(d *decision.Decision, bound *policy.Bound) bool {
	if bound == nil || isOwn(bound) {
		return true
	}
	if !bound.Enforced() {
		return false
	}
	for i := range d.Resolution.Bounds {
		if b := &d.Resolution.Bounds[i]; isOwn(b) && decision.Denies(b, &d.Statuses[i]) {
			return false
		}
	}
	return true
}
