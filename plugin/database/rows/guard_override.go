package rows

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// OverrideWarnings returns what an operator should check of an override: that its tenant was never seen, that neither
// the config nor the database has its policy, that no request has its network, that it starts in the past, another
// override in its place at another time, and each limit of all tenants that is below what the override allows one of
// them. A nil config is unknown, as in DB.Review.
func (s *DB) OverrideWarnings(
	ctx context.Context, config *resolve.Plan, isConsumer func(name string) bool, o Override,
) (warnings []string, err error) {
	add := func(warning string, failed error) {
		if err = cmp.Or(err, failed); warning != "" {
			warnings = append(warnings, warning)
		}
	}
	add(unseen(ctx, s.pool, isConsumer, o.Tenant))
	add(s.policyWarning(ctx, config, o.Policy))
	add(networkProblem(config, o), nil)
	if !o.StartsAt.IsZero() && o.StartsAt.Before(o.CreatedAt) {
		add("starts_at: is in the past: the override is in force at once", nil)
	}
	add(overlapWarning(ctx, s.pool, o))
	raised, failed := raisedAbove(ctx, s.pool, config, o)
	if err = cmp.Or(err, failed); err != nil {
		return nil, fail("review "+o.String(), err)
	}
	return append(warnings, raised...), nil
}

// networkProblem returns why no request has the network of an override, else "". A nil config is unknown.
func networkProblem(config *resolve.Plan, o Override) string {
	if o.Kind != schema.KindCustomLimit && o.Kind != schema.KindMultiplier {
		return "" // it applies to whole addresses
	}
	if problem := resolve.UncountedNetwork(config, o.IP); problem != "" {
		return "ip: " + problem
	}
	return ""
}

// overlapWarning returns a warning if another override of its kind, subject and policy is in force at times of o, and
// which of them then applies; else "". Of bans and exemptions any will do.
func overlapWarning(ctx context.Context, q querier, o Override) (string, error) {
	if o.Kind != schema.KindCustomLimit && o.Kind != schema.KindMultiplier || o.Source == schema.SourceDetector {
		return "", nil
	}
	type other struct {
		ID     int64
		Starts time.Time
	}
	found, err := collect[other](ctx, q, overlapping, o.ID)
	if err != nil || len(found) == 0 {
		return "", err
	}
	last := o.ID
	if found[0].Starts.After(o.StartsAt) {
		last = found[0].ID
	}
	return fmt.Sprintf("override %d changes the same at some time: while both are in force override %d applies, because it "+
		"starts later", found[0].ID, last), nil
}

// overlapping finds the first override of people in the place of another, but for its start, at a common time.
const overlapping = `SELECT o.id, coalesce(o.starts_at, '0001-01-01 00:00:00+00') AS starts
	FROM rate_limiter.overrides o, rate_limiter.overrides n
	WHERE n.id = $1 AND o.id <> n.id AND o.source <> 'detector' AND ` + sameTarget + `
		AND (o.expires_at IS NULL OR o.expires_at > greatest(clock_timestamp(), n.starts_at))
		AND (o.starts_at IS NULL OR n.expires_at IS NULL OR o.starts_at < n.expires_at)
	ORDER BY o.id LIMIT 1`

// raisedAbove returns a warning for each limit of all tenants that is below what an override allows one of them, and
// not below what its policy does.
func raisedAbove(ctx context.Context, q querier, config *resolve.Plan, o Override) ([]string, error) {
	if o.Kind == schema.KindBan || o.Kind == schema.KindExempt {
		return nil, nil
	}
	var w where
	w.add("(tier <> '' OR scope IN ('global', 'endpoint') OR tenant = %s)", o.Tenant)
	rows, err := policiesWhere(ctx, q, &w, 0)
	if err != nil {
		return nil, err
	}
	guards, err := guardsOf(ctx, q, config, rows, o.Tenant)
	var warnings []string
	for _, g := range guards {
		warnings = append(warnings, g.raised(&o)...)
	}
	slices.Sort(warnings)
	return warnings, err
}

// guardsOf returns a guard for each namespace, which compares the limits of the rows and the config for a tenant.
func guardsOf(
	ctx context.Context, q querier, config *resolve.Plan, rows []Policy, tenant string,
) (guards []*guard, err error) {
	for namespace, rows := range byNamespace(rows, config) {
		own := config
		if own != nil && own.Namespace() != namespace {
			own = nil
		}
		tiers, err := tiersOfTenants(ctx, q, own, namespace, []Policy{{Policy: schema.Policy{Tenant: tenant}}})
		if err != nil {
			return nil, err
		}
		guards = append(guards, newGuard(nil, rows, tiers, own))
	}
	return guards, nil
}

// byNamespace returns the policies of each namespace; that of the config is among them.
func byNamespace(rows []Policy, config *resolve.Plan) map[string][]Policy {
	lists := map[string][]Policy{}
	if config != nil {
		lists[config.Namespace()] = nil
	}
	for _, p := range rows {
		namespace := p.Key().Namespace
		lists[namespace] = append(lists[namespace], p)
	}
	return lists
}

// raised returns the warnings of overshoots for the limits that an override changes, of a window that changes nothing,
// and of amounts that may be meant in dollars. A limit of all tenants that the override names is compared with itself:
// the override allows its tenant more of the bucket that all share.
func (g *guard) raised(o *Override) []string {
	var warnings []string
	for _, n := range g.existing {
		if !g.covers(o, n) {
			continue
		}
		if o.WindowSize != 0 && n.WindowSize == 0 {
			warnings = append(warnings, fmt.Sprintf("window_size has no effect on %s, which allows %s", n, n.Rate()))
		}
		changed := changedBy(o, n)
		if n.Unit != "" && o.Limit+o.Amount > 0 {
			warnings = append(warnings, fmt.Sprintf("%s counts millionths of a US dollar: it allows %s then", n, changed.Rate()))
		}
		switch {
		case n.Scope == scopeTenant:
			g.written = append(g.written, changed)
		case n.MayDenyAll() && slower(n.Policy, changed.Policy):
			warnings = append(warnings, overshoot([]neighbour{changed}, n))
		}
	}
	return append(g.overshoots(), warnings...)
}

// covers reports whether an override changes a limit of requests of its tenant.
func (g *guard) covers(o *Override, n neighbour) bool {
	ofTenant := neighbour{Policy: Policy{Policy: schema.Policy{Tenant: o.Tenant}}}
	switch {
	case n.Tenant != "" && o.Tenant != "" && n.Tenant != o.Tenant, !g.mayHave(o.Tenant, n.Tier):
		return false
	case g.replaced(n, ofTenant), !policy.Overlap(n.Endpoint, o.Endpoint):
		return false
	case o.Policy != "":
		return o.Policy == n.Name
	case o.User+o.Credential+o.IP != "":
		return false // without a policy it changes the limits per user, credential or address alone
	}
	return n.Scope == scopeTenant && (o.Endpoint == "" || n.Endpoint != "")
}

// changedBy returns a limit as an override makes it for its tenant.
func changedBy(o *Override, n neighbour) neighbour {
	original := n.Policy
	n.override, n.original = o, &original
	if o.Tenant != "" {
		n.Tenant, n.Tier = o.Tenant, ""
	}
	n.Endpoint = cmp.Or(n.Endpoint, o.Endpoint)
	if o.Kind == schema.KindCustomLimit {
		if n.Limit.Limit = o.Limit; n.WindowSize != 0 {
			n.WindowSize = cmp.Or(o.WindowSize, n.WindowSize)
		}
		return n
	}
	if o.Kind == schema.KindTopUp {
		n.Limit.Limit += o.Amount
		return n
	}
	algorithm, _ := limit.ParseAlgorithm(n.Algorithm)
	n.Limit.Limit = min(max(n.Limit.Limit*int64(o.Factor)/1000, 1), policy.MostOf(algorithm))
	return n
}
