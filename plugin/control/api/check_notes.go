package api

import (
	"fmt"
	"slices"
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
)

// checkNotes returns what the caller of a check may not have intended, and where the check is not counted together with
// Kong's requests; nil if there are no notes.
func (s *Server) checkNotes(policies *resolve.Plan, d *decision.Decision, of *Check, v view) []string {
	if d.Reason != decision.Counted && d.Reason != decision.StoreAway {
		return nil // no limit was checked
	}
	var notes []string
	for _, note := range [...]string{
		capacityNote(d, v), shareNote(d), s.endpointNote(d, of, v), tierNote(policies, d), anonymousNote(d, of),
	} {
		if note != "" {
			notes = append(notes, note)
		}
	}
	return notes
}

// exceedsCapacity reports whether a limit denies the request because its bucket can never hold as many tokens as the
// request costs.
func exceedsCapacity(d *decision.Decision) bool {
	if !d.Denied() || d.Binding < 0 || d.RetryAfter != limit.Never {
		return false
	}
	b := &d.Resolution.Bounds[d.Binding]
	return b.Cost > decision.Capacity(b, &d.Statuses[d.Binding])
}

// capacityNote notes that a request costs more than a limit can ever hold.
func capacityNote(d *decision.Decision, v view) string {
	if !exceedsCapacity(d) || !v.readsBound(&d.Resolution.Bounds[d.Binding]) {
		return ""
	}
	b := &d.Resolution.Bounds[d.Binding]
	text := fmt.Sprintf("the request costs %d, and %s never has more than %d at once", b.Cost, b.Policy.Name,
		decision.Capacity(b, &d.Statuses[d.Binding]))
	if all := b.Policy.Limit.Capacity(); b.Cost <= all {
		text += fmt.Sprintf(", because nodes may take some ahead of need: with accuracy: exact it has %d", all)
	}
	return text
}

// shareNote notes that the org has used its share of a limit that it shares with others. It has no number, because the
// share depends on what the others demand.
func shareNote(d *decision.Decision) string {
	if !d.Denied() || d.Binding < 0 || d.Statuses[d.Binding].Source != decision.FairShare {
		return ""
	}
	return "your share of a shared limit, " + d.Resolution.Bounds[d.Binding].Policy.Name + ", is used up for the moment"
}

// endpointNote notes that some limits count the endpoint of a check differently from Kong's requests. A check has a
// method and a path only where a pattern covers them.
func (s *Server) endpointNote(d *decision.Decision, of *Check, v view) string {
	_, path, route := admit.Target(of.Endpoint)
	if route != "" && !s.IsRoute(route) {
		return fmt.Sprintf("the route %q is in no config or policy: if Kong has no such route, limits per endpoint "+
			"count it separately", route)
	}
	if path == "" {
		return ""
	}
	covered, byRoute := d.Resolution.Endpoint != "", countedByRoute(d.Resolution.Bounds, v)
	switch {
	case byRoute != "" && covered:
		return byRoute + " counts by route, and METHOD /path names none: Kong's requests to this endpoint spend from " +
			"another bucket of it"
	case byRoute != "":
		return "no pattern of the config or of a policy covers this endpoint, so " + byRoute +
			" counts it with requests that name no endpoint: name the route instead, and it shares Kong's bucket"
	case !covered && strings.HasPrefix(of.Endpoint, "/"):
		return "no pattern of any method (* " + of.Endpoint + ") of the config or of a policy covers this path: one of a " +
			"single method covers it only if endpoint names the method"
	case !covered && d.Identity.Method != "":
		return "no pattern of the config or of a policy covers this endpoint: only limits for all endpoints apply"
	}
	return ""
}

// countedByRoute returns the name of the first policy that the caller may read and that has a bucket per route, or "".
func countedByRoute(bounds []policy.Bound, v view) string {
	for i := range bounds {
		if p := bounds[i].Policy; p.ByRoute() && v.readsBound(&bounds[i]) {
			return p.Name
		}
	}
	return ""
}

// anonymousNote notes that a limit counts the user or the credential of a check with others, because the check names no
// org: as in Kong, it is then a request of its address.
func anonymousNote(d *decision.Decision, of *Check) string {
	if !d.Identity.Anonymous || of.User+of.Credential == "" {
		return ""
	}
	pooled := func(b policy.Bound) bool { return b.Key.Group == policy.ByIP && b.Key.Subject == "" }
	i := slices.IndexFunc(d.Resolution.Bounds, pooled)
	if i < 0 {
		return ""
	}
	others := "all requests from its ip"
	if of.IP == "" {
		others = "all requests that name neither org nor ip"
	}
	return fmt.Sprintf("without org_id the request is anonymous: %s counts it with %s, whatever user_id and credential_id "+
		"are; give org_id to count each user apart", d.Resolution.Bounds[i].Policy.Name, others)
}

// tierNote notes that the default tier applies because the check claims none. Kong may derive another tier from the
// consumer or from a header.
func tierNote(policies *resolve.Plan, d *decision.Decision) string {
	if len(policies.Rules.Tier) == 0 || d.Resolution.Exempt || d.Identity.Tenant.Kind != identity.Tenant {
		return ""
	}
	from := policies.TierFrom(&d.Identity)
	if from == "default" {
		return "tier " + d.Resolution.Tier + " is the default: none is set for this org (PUT /v1/orgs/{org}), and the " +
			"check claims none; Kong may derive another from the consumer"
	}
	if why, ok := strings.CutPrefix(from, "default: "); ok {
		return "tier " + d.Resolution.Tier + " is the default: " + why
	}
	return ""
}
