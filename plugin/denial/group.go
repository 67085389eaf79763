package denial

import (
	"hash/maphash"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
)

const (
	// maxFinished bounds the seconds that wait for Run: it is late by more only if it does not run.
	maxFinished = 3
	// maxOthers bounds the lines of others in a second: a database can have a policy for each tenant.
	maxOthers = 1000
	// maxRequestIDs bounds the ids of requests in a line: all of a client's few denials are found by their ids, and of a
	// flood a sample.
	maxRequestIDs = 10
	// maxText bounds every name in a line, in bytes.
	maxText = 256
)

// window is what was denied in one second.
type window struct {
	second  int64 // since 1970
	groups  map[key]*group
	own     int // groups that are not others
	denials uint64
}

// key is what the groups of a second are told apart by. A policy that denies for two reasons or in two modes (it can
// stand in two configs) is two groups, so that what a line says holds for all that it counts.
type key struct {
	org      string // at most maxText bytes
	orgTail  uint64 // the hash of the whole name where org is a part of it; else 0
	policy   string // "" where the reason is no bound's
	orgKind  identity.Kind
	reason   decision.Reason
	mode     policy.Mode
	isOthers bool // of all tenants that have no group of their own
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

// group is the denials of one key in one second. What is said beside the counts is that of the first.
type group struct {
	key         key
	count       uint64
	answers     uint64 // of count, those that the client was told of
	first, last int64  // µs since 1970

	user           identity.Name
	endpoint, tier string
	requestIDs     []string // of the first denials whose id is known, at most maxRequestIDs
	truncated      fields   // that were cut
	mixed          fields   // in which a later denial differs from the first

	policyID, policyVersion int64
	override, penalty       int64
	scope                   policy.Scope
	spec                    limit.Spec
	cost                    int64
	wait                    limit.Micros
	source                  decision.Source
	failure                 decision.Failure
}

// fields is a set of fields of a line.
type fields uint8

const (
	orgField fields = 1 << iota
	userField
	endpointField
	tierField
	requestIDField
	sourceField
	policyField
	nodeField
)

var fieldNames = [...]string{"org", "user", "endpoint", "tier", "request_id", "source", "policy", "node"}

// names are the fields of the set, as a line names them.
func (f fields) names() []string {
	var names []string
	for i, name := range fieldNames {
		if f&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return names
}

// open makes the group of the first denial of its key.
func (r *Recorder) open(k key, now time.Time, d *decision.Decision, c cause) *group {
	g := &group{key: k, first: now.UnixMicro(), last: now.UnixMicro(), wait: c.wait, policyVersion: d.PolicyVersion}
	if k.orgTail != 0 {
		g.key.org = strings.Clone(k.org)
		g.truncated |= orgField
	}
	g.user.Kind = d.Identity.User.Kind
	g.user.ID = g.keep(d.Identity.User.ID, userField)
	g.endpoint = g.keep(d.Resolution.Endpoint, endpointField)
	g.tier = g.keep(d.Resolution.Tier, tierField)
	if c.bound == nil {
		if c.reason == decision.Banned {
			g.override = d.Resolution.Override
		}
		return g
	}
	p := c.bound.Policy
	g.policyID, g.scope, g.spec = p.Row, p.Scope, p.Limit.Spec()
	g.cost, g.override, g.penalty = c.bound.Cost, c.bound.Override, c.bound.Penalty
	g.source, g.failure = c.status.Source, c.status.Failure
	return g
}

// keep is a name as a group keeps it: a long one is cut, and the rest of its memory let go.
func (g *group) keep(name string, field fields) string {
	if len(name) <= maxText {
		return name
	}
	g.truncated |= field
	return strings.Clone(clip(name))
}

// other is the group that denials are counted in when there are too many groups: one for each policy, and one for the
// policies beyond maxOthers.
func (w *window) other(k key, now time.Time) *group {
	k = key{policy: k.policy, reason: k.reason, mode: k.mode, isOthers: true}
	g := w.groups[k]
	if g == nil && len(w.groups)-w.own >= maxOthers {
		k.policy = ""
		g = w.groups[k]
	}
	if g == nil {
		g = &group{key: k, first: now.UnixMicro(), last: now.UnixMicro()}
		w.groups[k] = g
	}
	return g
}

// add counts a denial of the group's key.
func (g *group) add(now time.Time, d *decision.Decision, c cause) {
	g.count++
	if c.answer {
		g.answers++
	}
	at := now.UnixMicro()
	g.first, g.last = min(g.first, at), max(g.last, at)
	if g.key.isOthers {
		return
	}
	if d.RequestID != "" && len(g.requestIDs) < maxRequestIDs {
		g.requestIDs = append(g.requestIDs, g.keep(d.RequestID, requestIDField))
	}
	if user := &d.Identity.User; user.Kind != g.user.Kind || clip(user.ID) != g.user.ID {
		g.mixed |= userField
	}
	if clip(d.Resolution.Endpoint) != g.endpoint {
		g.mixed |= endpointField
	}
	if c.status != nil && c.status.Source != g.source {
		g.mixed |= sourceField
	}
}

// clip is text as far as it fits into maxText bytes, without a part of a character at its end.
func clip(text string) string {
	if len(text) <= maxText {
		return text
	}
	for end := maxText; end > maxText-utf8.UTFMax; end-- {
		if utf8.RuneStart(text[end]) {
			return text[:end]
		}
	}
	return text[:maxText] // no UTF-8 at all
}
