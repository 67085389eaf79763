package rows

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// AddTopUp is AddOverride for a top-up, which ends with the period that its limit is in, by the clock of the database
// and in the time zone of the tenant. The limit may be one of the config; a nil config is unknown: the top-up needs an
// end if the database has no policy of its name. An InvalidError says why a top-up would have no effect.
func (s *DB) AddTopUp(ctx context.Context, c Change, config *resolve.Plan, o Override) (Override, int64, error) {
	return s.addOverride(ctx, c, o, func(q querier, o Override) (Override, error) {
		return completeTopUp(ctx, q, config, o)
	})
}

// CheckTopUp is CheckNew for a top-up. It returns the top-up with its end.
func (s *DB) CheckTopUp(ctx context.Context, config *resolve.Plan, o Override) (Override, error) {
	o, err := completeTopUp(ctx, s.pool, config, o.completed(Change{}))
	return o, fail("check "+o.String(), err)
}

// topUpReview has what a top-up is checked against.
type topUpReview struct {
	Override
	now       time.Time
	tenant    Tenant      // zero without a row
	overrides []Override  // of the tenant and the policy, in force
	limits    []neighbour // that the tenant may have, of the policy
	names     []string    // of the policies that can be topped up
	isKnown   bool        // the plugin's config is
}

// completeTopUp returns a top-up with its end, or an InvalidError.
func completeTopUp(ctx context.Context, q querier, config *resolve.Plan, o Override) (Override, error) {
	r := topUpReview{Override: o, isKnown: config != nil}
	err := r.read(ctx, q, config)
	if err == nil {
		o.ExpiresAt, err = r.end()
	}
	if err == nil {
		err = r.checkAmount()
	}
	return o, err
}

func (r *topUpReview) read(ctx context.Context, q querier, config *resolve.Plan) (err error) {
	if r.now, err = readClock(ctx, q); err != nil {
		return err
	}
	if r.tenant, err = tenantTable.byKey(r.Tenant, r.Tenant)(ctx, q); err != nil && !IsMissing(err) {
		return err
	}
	r.overrides, err = collect[Override](ctx, q, overrideTable.selects+" WHERE "+stateColumn+" = '"+StateInForce+
		"' AND tenant = $1 AND policy IN ('', $2) ORDER BY id", r.Tenant, r.Policy)
	if err != nil {
		return err
	}
	seen, err := scalars[string](ctx, q, `SELECT DISTINCT t.tier FROM rate_limiter.tenant_tiers t
		JOIN rate_limiter.usage_names n ON n.id = t.tenant WHERE n.name = $1 AND $2 = ''`, r.Tenant, r.tenant.Tier)
	if err != nil {
		return err
	}
	var w where
	w.add("tenant IN ('', %s)", r.Tenant)
	rows, err := policiesWhere(ctx, q, &w, 0)
	if err != nil {
		return err
	}
	guards, err := guardsOf(ctx, q, config, rows, r.Tenant)
	for _, g := range guards {
		r.add(g, seen)
	}
	return err
}

// add adds the limits of one namespace that the tenant may have. seen has the tiers in which nodes have seen it.
func (r *topUpReview) add(g *guard, seen []string) {
	for _, n := range g.existing {
		others := n.User != "" && n.User != r.User || n.Credential != "" && n.Credential != r.Credential ||
			n.IP != "" || n.For == schema.ForAnonymous || n.Tier != "" && len(seen) > 0 && !slices.Contains(seen, n.Tier)
		of := r.Override
		if of.Policy = n.Name; others || !g.covers(&of, n) {
			continue
		}
		if scope, _ := policy.ScopeOf(n.Scope); n.Period != "" && scope.OfTenant() && !slices.Contains(r.names, n.Name) {
			r.names = append(r.names, n.Name)
		}
		if n.Name == r.Policy {
			r.limits = append(r.limits, n)
		}
	}
}

func topUpFault(field, format string, args ...any) error {
	return &InvalidError{Field: field, Problem: fmt.Sprintf(format, args...)}
}

// end returns when the period ends in which the limit is now.
func (r *topUpReview) end() (end time.Time, err error) {
	for _, o := range r.overrides {
		if o.Kind == schema.KindExempt && o.User+o.Endpoint+o.Credential+o.IP == "" {
			return end, topUpFault("kind", "tenant %s has no limits: override %d exempts it", r.Tenant, o.ID)
		}
	}
	switch {
	case len(r.limits) > 0:
	case r.isKnown || r.ExpiresAt.IsZero():
		return end, r.unknown()
	case !r.ExpiresAt.After(r.now):
		return end, topUpFault("expires_at", "%s", expiryProblem)
	default:
		return r.ExpiresAt, nil
	}
	for _, n := range r.limits {
		next, err := r.endOf(n)
		if err == nil && !end.IsZero() && !next.Equal(end) {
			err = topUpFault("policy", "has periods that end at different times for tenant %s, such as %s and %s: "+
				"set the tenant's tier first", r.Tenant, end.Format(time.RFC3339), next.Format(time.RFC3339))
		}
		if err != nil {
			return end, err
		}
		end = next
	}
	if !r.ExpiresAt.IsZero() && !r.ExpiresAt.Equal(end) {
		return end, topUpFault("expires_at", "must be left out: a topup that is made now ends with the period, at %s",
			end.Format(time.RFC3339))
	}
	return end, nil
}

// unknown returns why no limit is topped up.
func (r *topUpReview) unknown() error {
	slices.Sort(r.names)
	text := fmt.Sprintf("no limit of this name applies to tenant %s", r.Tenant)
	if r.tenant.Tier != "" {
		text += " (tier " + r.tenant.Tier + ")"
	}
	if len(r.names) > 0 {
		text += "; limits to top up: " + strings.Join(r.names, ", ")
	}
	if !r.isKnown {
		text += "; for a limit of the plugin's config, which is not known here, give the config, or expires_at, the end " +
			"of the period"
	}
	return topUpFault("policy", "%s", text)
}

// endOf returns when the period of a limit ends, or why it cannot be topped up.
func (r *topUpReview) endOf(n neighbour) (time.Time, error) {
	scope, _ := policy.ScopeOf(n.Scope)
	counts := r.Policy + " counts " + policy.PerScope(n.Scope)
	switch {
	case !scope.OfTenant():
		return r.now, topUpFault("policy", "must be a limit of one tenant: %s", counts)
	case n.Period == "":
		kind := "a rolling limit"
		if n.MaxDuration != 0 {
			kind = "a limit of requests at once"
		}
		return r.now, topUpFault("policy", "must have a period, such as month: %s is %s: raise it by a "+
			"custom_limit with an end", r.Policy, kind)
	case r.User != "" && !scope.ByUser():
		return r.now, topUpFault("user", "must be left out: %s", counts)
	case r.Credential != "" && scope != policy.Credential:
		return r.now, topUpFault("credential", "must be left out: %s", counts)
	case r.Endpoint != "" && !scope.ByEndpoint():
		return r.now, topUpFault("endpoint", "must be left out: %s", counts)
	}
	if policy.IsZone(r.tenant.TimeZone) {
		n.TimeZone = cmp.Or(r.tenant.TimeZone, n.TimeZone)
	}
	calendar, err := policy.CompileCalendar(n.Policy.Policy.Limit)
	if err != nil {
		return r.now, topUpFault("policy", "cannot be counted: %s", err)
	}
	_, end := calendar.Window(r.now.UnixMicro())
	return time.UnixMicro(end).UTC(), nil
}

// checkAmount returns an error if the limit would exceed its maximum, with all top-ups and the largest override.
func (r *topUpReview) checkAmount() error {
	var most, added int64
	for _, n := range r.limits {
		most = max(most, n.Limit.Limit)
		for _, o := range r.overrides {
			if o.Kind == schema.KindCustomLimit || o.Kind == schema.KindMultiplier {
				most = max(most, changedBy(&o, n).Limit.Limit)
			}
		}
	}
	for _, o := range r.overrides {
		added += o.Amount
	}
	if left := limit.MaxQuantity - most - added; r.Amount > left {
		return topUpFault("amount", "must be at most %d: the limit is %d, top-ups in force add %d, and no limit exceeds %d",
			max(left, 0), most, added, limit.MaxQuantity)
	}
	return nil
}
