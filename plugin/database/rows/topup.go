package rows

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/calendar"
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

// toppedUp is a limit that a top-up is meant for.
type toppedUp struct {
	neighbour
	spec limit.Spec
}

// topUpReview has what a top-up is checked against.
type topUpReview struct {
	Override
	tenant    Tenant // zero without a row
	overrides []Override
	limits    []toppedUp // that the tenant may have, of the policy
	names     []string   // of the policies that can be topped up
	isKnown   bool       // the plugin's config is
}

// completeTopUp returns a top-up with its end, or an InvalidError.
func completeTopUp(ctx context.Context, q querier, config *resolve.Plan, o Override) (Override, error) {
	now, err := readClock(ctx, q)
	if err != nil {
		return o, err
	}
	r := topUpReview{Override: o, isKnown: config != nil}
	if err := r.read(ctx, q, config); err != nil {
		return o, err
	}
	if o.ExpiresAt, err = r.end(now); err == nil {
		err = r.checkAmount()
	}
	return o, err
}

func (r *topUpReview) read(ctx context.Context, q querier, config *resolve.Plan) error {
	row, err := tenantTable.byKey(r.Tenant, r.Tenant)(ctx, q)
	if err != nil && !IsMissing(err) {
		return err
	}
	r.tenant = row
	r.overrides, err = collect[Override](ctx, q, overrideTable.selects+" WHERE "+stateColumn+" = '"+StateInForce+
		"' AND tenant = $1 ORDER BY id", r.Tenant)
	if err != nil {
		return err
	}
	var seen []string
	if row.Tier == "" {
		seen, err = scalars[string](ctx, q, `SELECT DISTINCT t.tier FROM rate_limiter.tenant_tiers t
			JOIN rate_limiter.usage_names n ON n.id = t.tenant WHERE n.name = $1`, r.Tenant)
	}
	if err != nil {
		return err
	}
	var w where
	w.add("tenant IN ('', %s)", r.Tenant)
	list, err := policiesWhere(ctx, q, &w, 0)
	if err != nil {
		return err
	}
	for namespace, rows := range byNamespace(list, config) {
		own := config
		if own != nil && own.Namespace() != namespace {
			own = nil
		}
		tiers, err := tiersOfTenants(ctx, q, own, namespace, []Policy{{Policy: schema.Policy{Tenant: r.Tenant}}})
		if err != nil {
			return err
		}
		r.add(newGuard(nil, rows, tiers, own), limitsOf(rows, own), seen)
	}
	return nil
}

// limitsOf returns the limits of rows, and those of a config; nil: none.
func limitsOf(rows []Policy, config *resolve.Plan) []toppedUp {
	var list []toppedUp
	for _, p := range rows {
		if compiled, err := policy.CompileLimit(p.Limit, &schema.Config{}, p.Tier, p.For); err == nil {
			list = append(list, toppedUp{neighbour{Policy: p}, compiled.Limit.Spec()})
		}
	}
	if config == nil {
		return list
	}
	for _, p := range config.TenantPolicies() {
		n := neighbour{Policy: configured(config.Namespace(), p), inConfig: true}
		list = append(list, toppedUp{n, p.Limit.Spec()})
	}
	return list
}

// add adds the limits of one namespace that the tenant may have. seen has the tiers in which nodes have seen it.
func (r *topUpReview) add(g *guard, limits []toppedUp, seen []string) {
	for _, l := range limits {
		others := l.User != "" && l.User != r.User || l.Credential != "" && l.Credential != r.Credential ||
			l.IP != "" || l.For == schema.ForAnonymous || l.Tier != "" && len(seen) > 0 && !slices.Contains(seen, l.Tier)
		of := r.Override
		if of.Policy = l.Name; others || !g.covers(&of, l.neighbour) {
			continue
		}
		if l.ofTenant() && l.spec.Calendar != nil && !slices.Contains(r.names, l.Name) {
			r.names = append(r.names, l.Name)
		}
		if l.Name == r.Policy {
			r.limits = append(r.limits, l)
		}
	}
}

// ofTenant reports whether each bucket of the limit belongs to one tenant.
func (l *toppedUp) ofTenant() bool {
	scope, _ := policy.ScopeOf(l.Scope)
	return scope != policy.IP && !scope.Shared()
}

func topUpFault(field, format string, args ...any) error {
	return &InvalidError{Field: field, Problem: fmt.Sprintf(format, args...)}
}

// end returns when the period ends in which the limit is now.
func (r *topUpReview) end(now time.Time) (time.Time, error) {
	for _, o := range r.overrides {
		if o.Kind == schema.KindExempt && o.User+o.Endpoint+o.Credential+o.IP == "" {
			return now, topUpFault("kind", "tenant %s has no limits: override %d exempts it", r.Tenant, o.ID)
		}
	}
	switch {
	case len(r.limits) == 0 && !r.isKnown && !r.ExpiresAt.IsZero():
		if !r.ExpiresAt.After(now) {
			return now, topUpFault("expires_at", "%s", expiryProblem)
		}
		return r.ExpiresAt, nil
	case len(r.limits) == 0:
		return now, r.unknown()
	}
	var ends []time.Time
	for _, l := range r.limits {
		end, err := r.endOf(l, now)
		if err != nil {
			return now, err
		}
		if !slices.ContainsFunc(ends, end.Equal) {
			ends = append(ends, end)
		}
	}
	if len(ends) > 1 {
		return now, topUpFault("policy", "has periods that end at different times for tenant %s, such as %s and %s: "+
			"set the tenant's tier first", r.Tenant, ends[0].Format(time.RFC3339), ends[1].Format(time.RFC3339))
	}
	if !r.ExpiresAt.IsZero() && !r.ExpiresAt.Equal(ends[0]) {
		return now, topUpFault("expires_at", "must be left out: a topup that is made now ends with the period, at %s",
			ends[0].Format(time.RFC3339))
	}
	return ends[0], nil
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
func (r *topUpReview) endOf(l toppedUp, now time.Time) (time.Time, error) {
	scope, _ := policy.ScopeOf(l.Scope)
	counts := r.Policy + " counts " + policy.PerScope(l.Scope)
	switch {
	case !l.ofTenant():
		return now, topUpFault("policy", "must be a limit of one tenant: %s", counts)
	case l.spec.Calendar == nil:
		kind := "a rolling limit"
		if l.spec.Algorithm == limit.Concurrency {
			kind = "a limit of requests at once"
		}
		return now, topUpFault("policy", "must have a period, such as month: %s is %s: raise it by a "+
			"custom_limit with an end", r.Policy, kind)
	case r.User != "" && !scope.ByUser():
		return now, topUpFault("user", "must be left out: %s", counts)
	case r.Credential != "" && scope != policy.Credential:
		return now, topUpFault("credential", "must be left out: %s", counts)
	case r.Endpoint != "" && !scope.ByEndpoint():
		return now, topUpFault("endpoint", "must be left out: %s", counts)
	}
	zoned := inZone(l.spec.Calendar, r.tenant.TimeZone)
	_, end := zoned.Window(now.UnixMicro())
	return time.UnixMicro(end).UTC(), nil
}

// inZone returns a calendar in a tenant's zone; where that is none or unknown, as it is.
func inZone(c *calendar.Calendar, zone string) *calendar.Calendar {
	if zoned, err := c.In(cmp.Or(zone, c.Zone())); err == nil {
		return zoned
	}
	return c
}

// checkAmount returns an error if the limit would exceed its maximum, with all top-ups and the largest override.
func (r *topUpReview) checkAmount() error {
	var most, added int64
	for _, l := range r.limits {
		most = max(most, l.spec.Quantity)
		for i := range r.overrides {
			o := &r.overrides[i]
			isChange := o.Kind == schema.KindCustomLimit || o.Kind == schema.KindMultiplier
			if isChange && (o.Policy == "" || o.Policy == r.Policy) {
				most = max(most, changedBy(o, l.neighbour).Limit.Limit)
			}
		}
	}
	for _, o := range r.overrides {
		if o.Kind == schema.KindTopUp && o.Policy == r.Policy {
			added += o.Amount
		}
	}
	if left := limit.MaxQuantity - most - added; r.Amount > left {
		return topUpFault("amount", "must be at most %d: the limit is %d, top-ups in force add %d, and no limit exceeds %d",
			max(left, 0), most, added, limit.MaxQuantity)
	}
	return nil
}
