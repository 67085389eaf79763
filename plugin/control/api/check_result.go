package api

import (
	"slices"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
)

// Checked is the decision about a request.
type Checked struct {
	Allowed bool   `json:"allowed"`
	Reason  string `json:"reason"            enum:"within_limits,no_limit,exempt,limit_exceeded,cost_too_large,banned,tenant_missing,user_missing,store_away,meta_limited,internal_fault" doc:"Why. cost_too_large: a limit that denies never holds so many tokens, so waiting does not help; store_away: a limit that fails closed could not be checked; meta_limited: the org sends one node too many requests; internal_fault: the config's on_internal_error decided."`
	DryRun  bool   `json:"dry_run,omitempty"                                                                                                                                              doc:"Nothing was spent."`

	// The binding limit.
	Policy     string     `json:"policy,omitempty"      doc:"The name of the binding limit: of those that deny, the one with the longest wait; else the one with the least left. Absent: no limit applies. For an org's token: among the limits of the org and of its users." example:"daily"`
	PolicyID   int64      `json:"policy_id,omitempty"   doc:"The id of that policy in the database; absent: it is in the plugin's config."                                                                                                                                    example:"7"`
	Limit      *int64     `json:"limit,omitempty"       doc:"Tokens, as in X-RateLimit-Limit."`
	Remaining  *int64     `json:"remaining,omitempty"   doc:"Tokens that are left; in a dry run, before the request."`
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
	Policy     string    `json:"policy"                doc:"The name of the policy."                                                    example:"daily"`
	PolicyID   int64     `json:"policy_id,omitempty"   doc:"Its id in the database; absent: it is in the plugin's config."              example:"7"`
	Endpoint   string    `json:"endpoint,omitempty"`
	Scope      string    `json:"scope"                                                                                                  example:"tenant"`
	Mode       string    `json:"mode"                                                                                                                    enum:"enforce,shadow,log"`
	Allowed    bool      `json:"allowed"               doc:"The limit has room, or its fail mode admits the request."`
	Cost       int64     `json:"cost"`
	Charged    bool      `json:"charged"`
	Limit      int64     `json:"limit"`
	WindowSize int64     `json:"window_size"`
	Used       *int64    `json:"used,omitempty"        doc:"Absent, like remaining, reset and retry_after, if the value is unknown."`
	Remaining  *int64    `json:"remaining,omitempty"`
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
		Allowed:       !d.Denied(),
		Reason:        reasonOf(d),
		DryRun:        of.DryRun,
		Notes:         notes,
		Tier:          d.Resolution.Tier,
		Endpoint:      d.Resolution.Endpoint,
		PolicyVersion: d.PolicyVersion,
		ExemptBy:      d.Resolution.Exemption.Source(),
		Warning:       v.showsWarning(d),
		Shadow:        v.showsShadow(d),
		Degraded:      v.showsDegraded(d),
		Statuses:      []CheckStatus{},
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
		out.addOverride(b.Override)
		out.addOverride(b.Penalty)
		if status.Source != decision.Unanswered || status.Failure != decision.NoFailure {
			out.Statuses = append(out.Statuses, statusOf(b, status))
		}
	}
	if binding := v.bindingIndex(d); binding >= 0 {
		b, status := &d.Resolution.Bounds[binding], &d.Statuses[binding]
		out.Policy, out.PolicyID = b.Policy.Name, b.Policy.Row
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

// statusOf returns the answer of one bound.
func statusOf(b *policy.Bound, status *decision.Status) CheckStatus {
	spec := b.Policy.Limit.Spec()
	out := CheckStatus{
		Policy:     b.Policy.Name,
		PolicyID:   b.Policy.Row,
		Endpoint:   b.Key.Endpoint,
		Scope:      b.Policy.Scope.String(),
		Mode:       b.Policy.Mode.String(),
		Allowed:    status.Admits(),
		Cost:       b.Cost,
		Charged:    status.Charged,
		Limit:      spec.Burst,
		WindowSize: int64(spec.Window / limit.Second),
		Source:     status.Source.String(),
		Failure:    status.Failure.String(),
		PublicNote: b.Policy.PublicNote,
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
