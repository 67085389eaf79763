package denial

import (
	"hash/maphash"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
)

const (
	// maxFinished bounds the seconds that wait for Run.
	maxFinished = 3
	// maxOthers bounds the lines for others in a second: a database can have a policy for each tenant.
	maxOthers = 1000
	// maxRequestIDs bounds the ids of requests in a line: all ids of a few denials, and a sample of a flood.
	maxRequestIDs = 10
	// maxText bounds every name in a line, in bytes.
	maxText = 256
)

type window struct {
	second  int64          // since 1970
	all     []*group       // in the order of their first denials
	singles int            // of all, those of one denial each
	single  map[key]int    // how many of these each key has
	groups  map[key]*group // the others of all
	named   int            // of groups, those that are not for others
	denials uint64
}

// key identifies a group of a second. A policy that denies for two reasons or in two modes, because two configs have
// it, has two groups: a line holds for every denial that it counts.
type key struct {
	org      string // at most maxText bytes
	orgTail  uint64 // the hash of the whole name if org is cut; else 0
	policy   string // "" if no bound denied
	orgKind  identity.Kind
	reason   decision.Reason
	mode     policy.Mode
	isOthers bool // for the denials beyond MaxGroups
}

func (r *Recorder) keyOf(d *decision.Decision, c cause) key {
	k := key{org: d.Identity.Tenant.ID, orgKind: d.Identity.Tenant.Kind, reason: c.reason, mode: c.mode}
	if len(k.org) > maxText {
		k.orgTail = maphash.String(r.seed, k.org) | 1
		k.org = clip(k.org)
	}
	if c.bound != nil {
		k.policy = c.bound.Policy.Name
	}
	return k
}

// group counts the denials of one key in one second. The other fields are those of the first denial.
type group struct {
	key         key
	count       uint64
	answers     uint64 // of count, those whose policy the response named
	readable    uint64 // of count, those that the tenant may read
	first, last int64  // µs since 1970

	user           identity.Name
	ip             string
	endpoint, tier string
	requestIDs     []string // of the first denials with an id, at most maxRequestIDs
	hiddenIDs      []string // of requestIDs, those that the tenant may not read
	truncated      fields   // they were cut
	mixed          fields   // a later denial has another value

	policyID, policyVersion int64
	override, penalty       int64
	exemption               resolve.Exemption // that lifted other limits
	scope                   policy.Scope
	limit                   *limit.Limit
	policyFor               string // for recent denials
	unit                    string // of the amounts; "": tokens
	cost, capacity          int64
	remaining               int64 // -1: unknown
	wait                    limit.Micros
	source                  decision.Source
	failure                 decision.Failure
}

type fields uint16

const (
	orgField fields = 1 << iota
	userField
	endpointField
	tierField
	requestIDField
	sourceField
	policyField
	nodeField
	exemptByField
	ipField
)

var fieldNames = [...]string{
	"org", "user", "endpoint", "tier", "request_id", "source", "policy", "node", "exempt_by", "ip",
}

// names returns the fields of the set, as a line names them.
func (f fields) names() []string {
	var names []string
	for i, name := range fieldNames {
		if f&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return names
}

func (r *Recorder) newGroup(k key, now time.Time, d *decision.Decision, c cause) *group {
	g := &group{key: k, first: now.UnixMicro(), last: now.UnixMicro(), wait: c.wait, policyVersion: d.PolicyVersion}
	if k.orgTail != 0 {
		g.key.org = strings.Clone(k.org)
		g.truncated |= orgField
	}
	g.user.Kind = d.Identity.User.Kind
	g.user.ID = g.truncate(d.Identity.User.ID, userField)
	g.ip = g.truncate(d.Identity.IP, ipField)
	g.endpoint = g.truncate(d.Resolution.Endpoint, endpointField)
	g.tier = g.truncate(d.Resolution.Tier, tierField)
	g.exemption = d.Resolution.Exemption
	if c.bound == nil {
		if c.reason == decision.Banned {
			g.override = d.Resolution.Override
		}
		return g
	}
	p := c.bound.Policy
	g.policyID, g.scope, g.limit, g.unit = p.Row, p.Scope, &p.Limit, p.Unit
	if r.recent != nil {
		g.policyFor = p.Match()
	}
	g.cost, g.override, g.penalty = c.bound.Cost, c.bound.Override, c.bound.Penalty
	g.capacity = decision.Capacity(c.bound, c.status)
	if g.remaining = c.status.Remaining; c.status.Source == decision.Unanswered || c.status.Source == decision.FairShare {
		g.remaining = -1
	}
	g.source, g.failure = c.status.Source, c.status.Failure
	return g
}

// truncate returns a name of at most maxText bytes. It copies a long name, whose memory would be kept otherwise.
func (g *group) truncate(name string, field fields) string {
	if len(name) <= maxText {
		return name
	}
	g.truncated |= field
	return strings.Clone(clip(name))
}

// othersGroup returns the group for a denial beyond MaxGroups: one for each policy, and one for the policies beyond
// maxOthers.
func (w *window) othersGroup(k key, now time.Time) *group {
	k = key{policy: k.policy, reason: k.reason, mode: k.mode, isOthers: true}
	g := w.groups[k]
	if g == nil && len(w.groups)-w.named >= maxOthers {
		k.policy = ""
		g = w.groups[k]
	}
	if g == nil {
		g = &group{key: k, first: now.UnixMicro(), last: now.UnixMicro()}
		w.all, w.groups[k] = append(w.all, g), g
	}
	return g
}

func (g *group) countDenial(now time.Time, d *decision.Decision, c cause) {
	g.count++
	if c.answer {
		g.answers++
	}
	isReadable := tenantReads(d, c.bound)
	if isReadable {
		g.readable++
	}
	at := now.UnixMicro()
	g.first, g.last = min(g.first, at), max(g.last, at)
	if g.key.isOthers {
		return
	}
	if d.RequestID != "" && len(g.requestIDs) < maxRequestIDs {
		id := g.truncate(d.RequestID, requestIDField)
		if g.requestIDs = append(g.requestIDs, id); !isReadable {
			g.hiddenIDs = append(g.hiddenIDs, id)
		}
	}
	if user := &d.Identity.User; user.Kind != g.user.Kind || clip(user.ID) != g.user.ID {
		g.mixed |= userField
	}
	if clip(d.Identity.IP) != g.ip {
		g.mixed |= ipField
	}
	if clip(d.Resolution.Endpoint) != g.endpoint {
		g.mixed |= endpointField
	}
	if c.status != nil && c.status.Source != g.source {
		g.mixed |= sourceField
	}
	if d.Resolution.Exemption != g.exemption {
		g.mixed |= exemptByField
	}
}

// clip returns at most maxText bytes of text, without a part of a character at the end.
func clip(text string) string {
	if len(text) <= maxText {
		return text
	}
	for end := maxText; end > maxText-utf8.UTFMax; end-- {
		if utf8.RuneStart(text[end]) {
			return text[:end]
		}
	}
	return text[:maxText] // not UTF-8
}

// cause is one reason why a request is denied, or would be: a bound without room or without an answer, or a reason
// without a bound.
type cause struct {
	bound  *policy.Bound    // nil: only reason denies
	status *decision.Status // of bound
	reason decision.Reason
	mode   policy.Mode
	wait   limit.Micros // until the cause is gone; 0: unknown, limit.Never: no wait helps
	answer bool         // the response to the client names this cause
}

// Observe implements admit.Observer. A request without a denial costs two comparisons.
func (r *Recorder) Observe(d *decision.Decision) {
	if !d.Denied() && !d.ShadowDenied {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	// The clock is read under the lock, so that a finished second gets no more counts.
	now := time.Now()
	if d.ShadowReason != decision.Counted {
		r.count(now, d, cause{reason: d.ShadowReason, mode: d.Mode})
	}
	if d.Denied() && d.Reason != decision.Counted && d.Reason != decision.StoreAway {
		r.count(now, d, cause{reason: d.Reason, wait: d.RetryAfter, answer: true})
	}
	answered := false
	for i := range d.Resolution.Bounds {
		c, ok := causeOf(d, i)
		if !ok {
			continue
		}
		c.answer = c.answer && !answered
		answered = answered || c.answer
		r.count(now, d, c)
	}
}

// causeOf returns why bound i of d denies the request, and whether it does. If any bound has no room, bounds that fail
// closed are not causes, as in the metrics.
func causeOf(d *decision.Decision, i int) (cause, bool) {
	bound, status := &d.Resolution.Bounds[i], &d.Statuses[i]
	c := cause{bound: bound, status: status, mode: bound.Policy.Mode, wait: status.Wait}
	if status.Source == decision.Unanswered {
		c.reason, c.wait = decision.StoreAway, max(status.Wait, 1)
		c.answer = c.wait == d.RetryAfter
		return c, d.Reason == decision.StoreAway && decision.Denies(bound, status)
	}
	if c.answer = i == d.Binding; status.Source == decision.FairShare {
		c.reason = decision.ShareExceeded
	}
	return c, !status.Admits()
}

// count adds one denial to its group. The caller must hold the lock.
func (r *Recorder) count(now time.Time, d *decision.Decision, c cause) {
	if r.ended {
		r.lost[Shutdown]++
		return
	}
	if second := now.Unix(); r.window == nil || r.window.second != second {
		r.closeWindow()
		r.window = &window{second: second, single: map[key]int{}, groups: map[key]*group{}}
	}
	w, k := r.window, r.keyOf(d, c)
	w.denials++
	g := w.groups[k]
	switch {
	case g != nil:
	case w.singles < r.options.MaxSingles && w.single[k] < r.options.Singles:
		g = r.newGroup(k, now, d, c)
		w.all = append(w.all, g)
		w.singles++
		w.single[g.key]++
	case w.named < r.options.MaxGroups:
		g = r.newGroup(k, now, d, c)
		w.all, w.groups[g.key] = append(w.all, g), g
		w.named++
	default:
		r.lost[Groups]++
		g = w.othersGroup(k, now)
	}
	g.countDenial(now, d, c)
}

// closeWindow ends the current second. It takes constant time, because any request may call it. The caller must hold
// the lock.
func (r *Recorder) closeWindow() {
	switch w := r.window; {
	case w == nil:
	case len(r.finished) < maxFinished:
		r.finished = append(r.finished, w)
	default: // Run was not started, or the machine is too busy to run it
		r.lost[Queue] += w.denials
	}
	r.window = nil
}
