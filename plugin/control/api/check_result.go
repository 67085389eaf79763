package api

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// Checked is the decision about a request.
type Checked struct {
	Allowed bool   `json:"allowed"`
	Reason  string `json:"reason"            enum:"within_limits,no_limit,exempt,limit_exceeded,cost_too_large,banned,tenant_missing,user_missing,model_unpriced,store_away,meta_limited,internal_fault" doc:"Why. cost_too_large: a limit that denies never holds so many tokens, so waiting does not help; model_unpriced: a limit settles by prices, and the model has none; store_away: a limit that fails closed could not be checked; meta_limited: the org sends one node too many requests; internal_fault: the config's on_internal_error decided."`
	DryRun  bool   `json:"dry_run,omitempty"                                                                                                                                              doc:"Nothing was spent."`

	// The binding limit.
	Policy     string     `json:"policy,omitempty"      doc:"The name of the binding limit: of those that deny, the one with the longest wait; else the one with the least left. Absent: no limit applies. For an org's token: among the limits of the org and of its users." example:"daily"`
	PolicyID   int64      `json:"policy_id,omitempty"   doc:"The id of that policy in the database; absent: it is in the plugin's config."                                                                                                                                    example:"7"`
	PolicyRef  string     `json:"policy_ref,omitempty"  doc:"Identifies the policy among all, those of configs too: its name, and # with its id or the namespace and the tier of the config."                                                                                 example:"daily/default/enterprise"`
	Limit      *int64     `json:"limit,omitempty"       doc:"Tokens, as in X-RateLimit-Limit."`
	Remaining  *int64     `json:"remaining,omitempty"   doc:"Tokens that are left; in a dry run, before the request."`
	Unit       string     `json:"unit,omitempty"        doc:"usd: amounts are millionths of a US dollar. Absent: they are tokens."                                                                                                                                        enum:"usd"`
	Reset      *time.Time `json:"reset,omitempty"       doc:"When the bucket is full again, or the window ends."`
	ResetEpoch int64      `json:"reset_epoch,omitempty" doc:"The same in seconds since 1970, rounded up, as in X-RateLimit-Reset."`
	RetryAfter int64      `json:"retry_after,omitempty" doc:"Seconds after which to retry a denied request; absent: no wait is known to help."`

	Violated []string `json:"violated_policies,omitempty" doc:"The names of all limits that deny the request. For an org's token: of its own limits, or, if none of those denies, of the limits that it shares with other orgs."`

	PolicyVersion int64 `json:"policy_version,omitempty" doc:"The version of the database's policies by which it was decided; absent: there are none."`

	Cost *CheckCost `json:"cost,omitempty" doc:"What the request costs where a policy has no cost of its own, and where that is set. Absent: 1 token, because nothing sets it; or it is exempt."`

	Tier       string    `json:"tier,omitempty"        doc:"The tier whose limits applied."`
	TierSource string    `json:"tier_source,omitempty" doc:"Where the tier comes from: row; query: the check; as the plugin's config names it, such as consumer.tag.tier: nodes found it there; default; assumed: the default, because no node has seen the org."`
	TierSeenAt time.Time `json:"tier_seen_at,omitzero" doc:"When a node last reported it; absent: none has, or the check or a row names it."`

	Endpoint  string        `json:"endpoint,omitempty"      doc:"The name of the endpoint in policies and metrics; absent: no endpoint was given, or no pattern covers it."`
	Warning   bool          `json:"warning,omitempty"       doc:"The request is allowed, and usage is above the soft threshold of a limit."`
	Shadow    bool          `json:"shadow_denied,omitempty" doc:"A limit or config in shadow mode would have denied it."`
	Degraded  bool          `json:"degraded,omitempty"      doc:"Redis did not answer for all limits: their fail modes decided."`
	Statuses  []CheckStatus `json:"statuses"                doc:"The result of each limit. If one is known to deny, others may not have been checked. For an org's token: the limits of the org and of its users, and limits that all orgs share only with show_shared_limits."`
	Overrides []int64       `json:"overrides,omitempty"     doc:"The ids of the overrides that changed a limit, or that ban or exempt the request."`
	ExemptBy  string        `json:"exempt_by,omitempty"     doc:"What exempts the request: an override, or the place in the plugin's config." example:"exempt[3]"`
	Notes     []string      `json:"notes,omitempty"         doc:"Warnings about likely mistakes in the check, and about limits that do not count it together with Kong's requests."`

	Reservation *Reservation `json:"reservation,omitempty" doc:"Present if the check reserved, and was allowed."`
}

// CheckCost is what a request costs, and where that is set.
type CheckCost struct {
	Tokens   int64  `json:"tokens"`
	From     string `json:"from"               enum:"request,row,config"         doc:"request: the check; row: a cost in the database; config: the cost table of the plugin's config."`
	ID       int64  `json:"cost_id,omitempty"                                    doc:"The id of the cost in the database."`
	Endpoint string `json:"endpoint,omitempty"                                   doc:"The pattern that has the cost."`
}

// CheckStatus is the answer of one limit.
type CheckStatus struct {
	Policy    string `json:"policy"                doc:"The name of the policy."                                                    example:"daily"`
	PolicyID  int64  `json:"policy_id,omitempty"   doc:"Its id in the database; absent: it is in the plugin's config."              example:"7"`
	PolicyRef string `json:"policy_ref"            doc:"Identifies it among all, those of configs too."                             example:"daily/default/enterprise"`
	Endpoint  string `json:"endpoint,omitempty"`
	Scope     string `json:"scope"                                                                                                  example:"tenant"`
	Mode      string `json:"mode"                                                                                                                    enum:"enforce,shadow,log"`
	Allowed   bool   `json:"allowed"               doc:"The limit has room, or its fail mode admits the request."`
	Cost      int64  `json:"cost"`
	Charged   bool   `json:"charged"`
	Limit     int64  `json:"limit"`
	schema.Window
	Used       *int64    `json:"used,omitempty"        doc:"Absent, like remaining, reset and retry_after, if the value is unknown."`
	Remaining  *int64    `json:"remaining,omitempty"`
	Unit       string    `json:"unit,omitempty"        doc:"usd: amounts are millionths of a US dollar. Absent: they are tokens."                        enum:"usd"`
	Reset      time.Time `json:"reset,omitzero"`
	ResetEpoch int64     `json:"reset_epoch,omitempty" doc:"The same in seconds since 1970, rounded up."`
	RetryAfter int64     `json:"retry_after,omitempty"`
	Source     string    `json:"source"                doc:"What answered; unanswered: nothing did, and the limit's fail mode decided."                  enum:"memory,redis,lease,local,fair_share,unanswered"`
	Failure    string    `json:"failure,omitempty"     doc:"Why Redis did not."`
	PublicNote string    `json:"public_note,omitempty" doc:"The note about the policy for the org."`
}

// newChecked returns the part of a decision that a caller may read, with the notes on the request.
func newChecked(d *decision.Decision, of *Check, notes []string, v view) Checked {
	out := Checked{
		Allowed: !d.Denied(), Reason: reasonOf(d), DryRun: of.DryRun, Notes: notes,
		Tier: d.Resolution.Tier, Endpoint: d.Resolution.Endpoint, PolicyVersion: d.PolicyVersion,
		ExemptBy: d.Resolution.Exemption.Source(), Warning: v.showsWarning(d), Shadow: v.showsShadow(d),
		Degraded: v.showsDegraded(d), Statuses: []CheckStatus{},
	}
	if cost := d.Resolution.Cost; cost.From > resolve.DefaultCost {
		out.Cost = &CheckCost{cost.Tokens, cost.From.String(), cost.Row, cost.Endpoint}
	}
	if d.Denied() {
		out.RetryAfter = retryAfter(d.RetryAfter)
	}
	if d.Resolution.Banned || d.Resolution.Exempt {
		out.addOverride(d.Resolution.Override)
	}
	for i := range d.Resolution.Bounds {
		b, status := &d.Resolution.Bounds[i], &d.Statuses[i]
		if decision.Denies(b, status) {
			out.Violated = append(out.Violated, b.Policy.Name)
		}
		if !v.readsBound(b) {
			continue
		}
		for _, id := range d.Resolution.OverridesOf(b) {
			out.addOverride(id)
		}
		if status.Source != decision.Unanswered || status.Failure != decision.NoFailure {
			out.Statuses = append(out.Statuses, statusOf(b, status))
		}
	}
	if binding := v.bindingIndex(d); binding >= 0 {
		b, status := &d.Resolution.Bounds[binding], &d.Statuses[binding]
		out.Policy, out.PolicyID, out.PolicyRef = b.Policy.Name, b.Policy.Row, b.Ref().String()
		out.Unit = b.Policy.Unit
		out.Limit, out.Remaining = new(b.Policy.Limit.Spec().Burst), new(status.Remaining)
		out.Reset, out.ResetEpoch = new(timeOf(status.ResetAt())), status.ResetAt().Seconds()
	}
	return out
}

// addOverride lists the id of an override once; 0 is none.
func (c *Checked) addOverride(override int64) {
	if override != 0 && !slices.Contains(c.Overrides, override) {
		c.Overrides = append(c.Overrides, override)
	}
}

func statusOf(b *policy.Bound, status *decision.Status) CheckStatus {
	spec := b.Policy.Limit.Spec()
	out := CheckStatus{
		Policy: b.Policy.Name, PolicyID: b.Policy.Row, PolicyRef: b.Ref().String(),
		Endpoint: b.Key.Endpoint, Scope: b.Policy.Scope.String(), Mode: b.Policy.Mode.String(),
		Allowed: status.Admits(), Cost: b.Cost, Charged: status.Charged, Limit: spec.Burst,
		Window: policy.WindowOf(spec), Unit: b.Policy.Unit, Source: status.Source.String(),
		Failure: status.Failure.String(), PublicNote: b.Policy.PublicNote,
	}
	if status.Source == decision.Unanswered {
		out.Allowed = !decision.Denies(b, status)
		return out
	}
	out.Used, out.Remaining = new(status.Used), new(status.Remaining)
	out.Reset, out.ResetEpoch = timeOf(status.ResetAt()), status.ResetAt().Seconds()
	out.RetryAfter = retryAfter(status.Wait)
	return out
}

// retryAfter returns a wait in seconds, or 0 if no wait helps.
func retryAfter(wait limit.Micros) int64 {
	if wait == limit.Never {
		return 0
	}
	return wait.Seconds()
}

// reasonOf returns the published name of the reason for a decision.
func reasonOf(d *decision.Decision) string {
	switch {
	case d.Reason != decision.Counted:
		return d.Reason.String()
	case exceedsCapacity(d):
		return "cost_too_large"
	case d.Denied():
		return "limit_exceeded"
	case d.Resolution.Exempt:
		return "exempt"
	case len(d.Resolution.Bounds) == 0:
		return "no_limit"
	}
	return "within_limits"
}

// checkNotes returns what the caller of a check may not have intended, and where the check is not counted together with
// Kong's requests; nil if there are no notes.
func (s *Server) checkNotes(policies *resolve.Plan, d *decision.Decision, of *Check, v view) []string {
	if d.Reason != decision.Counted && d.Reason != decision.StoreAway {
		return nil // no limit was checked
	}
	var notes []string
	for _, note := range [...]string{
		capacityNote(d, v), shareNote(d), s.endpointNote(d, of, v), tierNote(policies, d), anonymousNote(d, of),
		slotNote(d, of, v),
	} {
		if note != "" {
			notes = append(notes, note)
		}
	}
	return notes
}

// slotNote notes that a check holds a slot that no later call can release.
func slotNote(d *decision.Decision, of *Check, v view) string {
	if of.Reserve != nil {
		return ""
	}
	for i := range d.Statuses {
		if b := &d.Resolution.Bounds[i]; b.Key.Slots && d.Statuses[i].Charged && v.readsBound(b) {
			const note = "%s counts requests at once, and this check for %d s: with reservation_id and reserve, settling ends it"
			return fmt.Sprintf(note, b.Policy.Name, b.Policy.Limit.Spec().Window/limit.Second)
		}
	}
	return ""
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
	amount := func(n int64) string { return schema.Amount(n, b.Policy.Unit) }
	text := fmt.Sprintf("the request costs %s, and %s never has more than %s at once", amount(b.Cost), b.Policy.Name,
		amount(decision.Capacity(b, &d.Statuses[d.Binding])))
	if all := b.Policy.Limit.Capacity(); b.Cost <= all {
		text += fmt.Sprintf(", because nodes may take some ahead of need: with accuracy: exact it has %s", amount(all))
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
	i := slices.IndexFunc(bounds, func(b policy.Bound) bool { return b.Policy.ByRoute() && v.readsBound(&b) })
	if i < 0 {
		return ""
	}
	return bounds[i].Policy.Name
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
