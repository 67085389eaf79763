package rows

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// Review holds what an operator should check when policies are written. In the CLI and the REST API alike, lock-outs
// require force, and warnings are shown with the result.
type Review struct {
	LockOuts []LockOut
	Warnings []string
}

// Review reviews a write of policies of one namespace before it is made: into a candidate, beside the active policies
// with its changes, or for "" in place of active ones. A nil config is unknown: its limits are not compared, and the
// warnings consider what it may have.
func (s *DB) Review(ctx context.Context, config *resolve.Plan, candidate string, list ...Policy) (Review, error) {
	var changes candidateChanges
	var r Review
	var err error
	if candidate != "" {
		changes, err = changesOf(ctx, s.pool, candidate)
	}
	if err == nil {
		r, err = changes.review(ctx, s.pool, config, list, list)
	}
	return r, fail("review policies", err)
}

// addRowWarnings warns of the costs and the overrides that a set writes: limits that can never hold a cost, and
// networks that no request has. after holds the active policies of the namespace after it, unless the set keeps them.
func (r *Review) addRowWarnings(ctx context.Context, q querier, set Set, d SetDiff, after []Policy) error {
	if d.Costs != nil {
		if set.KeepPolicies {
			var err error
			namespace := cmp.Or(set.Namespace, defaultNamespace)
			if after, err = policies(ctx, q, PolicyFilter{Namespace: namespace}); err != nil {
				return err
			}
		}
		r.Warnings = append(r.Warnings, costWarnings(set.Config, after, d.Costs.written())...)
	}
	if d.Overrides != nil {
		var tenants []string
		for _, o := range d.Overrides.Create {
			tenants = append(tenants, o.Tenant)
		}
		neverSeen, err := unseen(ctx, q, func(name string) bool {
			return set.IsConsumer != nil && set.IsConsumer(name) ||
				slices.ContainsFunc(set.Tenants, func(t Tenant) bool { return t.ID == name })
		}, tenants...)
		if err != nil {
			return err
		}
		if neverSeen != "" {
			r.Warnings = append(r.Warnings, neverSeen)
		}
		for _, o := range d.Overrides.written() {
			if problem := networkProblem(set.Config, o); problem != "" {
				r.Warnings = append(r.Warnings, o.String()+": "+problem)
			}
		}
	}
	return nil
}

// reviewAmong reviews written policies of one namespace against the rows of that namespace. Of those, created are new.
// Changed are the costs that are written with them; nil: none.
func reviewAmong(
	ctx context.Context, q querier, config *resolve.Plan, written, rows, created []Policy, changed *RowDiff[Cost],
) (Review, error) {
	var r Review
	if len(written) == 0 {
		return r, nil
	}
	key := written[0].Key()
	warning, err := namespaceWarning(ctx, q, config, key)
	if err != nil {
		return r, err
	}
	if warning != "" {
		r.Warnings = append(r.Warnings, warning)
	}
	if config != nil && config.Namespace() != key.Namespace {
		config = nil // the policies do not apply to it
	}
	tiers, err := tiersOfTenants(ctx, q, config, key.Namespace, slices.Concat(written, rows))
	if err != nil {
		return r, err
	}
	for _, p := range created {
		r.Warnings = append(r.Warnings, targetWarnings(config, p)...)
	}
	g := newGuard(written, rows, tiers, config)
	r.LockOuts, r.Warnings = g.lockOuts(), append(r.Warnings, g.overshoots()...)
	if err := r.addCostWarnings(ctx, q, written, changed); err != nil {
		return r, err
	}
	return r, r.addTierWarnings(ctx, q, config, created)
}

// addCostWarnings warns of written policies of one namespace that can never hold a cost there, except those of changed
// costs.
func (r *Review) addCostWarnings(ctx context.Context, q querier, written []Policy, changed *RowDiff[Cost]) error {
	kept, err := costs(ctx, q, CostFilter{Namespace: written[0].Key().Namespace})
	if err != nil {
		return err
	}
	if changed != nil {
		gone := map[int64]bool{}
		for _, c := range slices.Concat(changed.Delete, changed.updated()) {
			gone[c.ID] = true
		}
		kept = slices.DeleteFunc(kept, func(c Cost) bool { return gone[c.ID] })
	}
	r.Warnings = append(r.Warnings, costWarnings(nil, written, kept)...)
	return nil
}

// namespaceWarning returns a warning if a policy's namespace is not the config's, or, without a config, if all other
// policies are in other namespaces; else "".
func namespaceWarning(ctx context.Context, q querier, config *resolve.Plan, key PolicyKey) (string, error) {
	if config != nil {
		if config.Namespace() == key.Namespace {
			return "", nil
		}
		return fmt.Sprintf("%s applies to no request of the plugin's config: its namespace is %q, and the config's %q",
			key, key.Namespace, config.Namespace()), nil
	}
	used, err := scalars[string](ctx, q, `SELECT DISTINCT namespace FROM rate_limiter.policies ORDER BY 1`)
	if err != nil || len(used) == 0 || slices.Contains(used, key.Namespace) {
		return "", err
	}
	return fmt.Sprintf("no other policy is in namespace %q: unless it is that of the plugin's config, %s applies to no "+
		"request; others are in %q", key.Namespace, key, used), nil
}

// targetWarnings returns what an operator should check of what a new policy applies to: that no request meets it, and
// that it replaces limits of tiers. A nil config is unknown.
func targetWarnings(config *resolve.Plan, p Policy) []string {
	var warnings []string
	if config == nil {
		if problem := resolve.UncountedNetwork(nil, p.IP); problem != "" {
			warnings = append(warnings, fmt.Sprintf("%s: ip: %s", p.Key(), problem))
		}
		return warnings
	}
	if field, problem := config.Unmet(p.Policy); problem != "" {
		warnings = append(warnings, fmt.Sprintf("%s: %s: %s", p.Key(), field, problem))
	}
	isReplaced := func(q *policy.Policy) bool { return q.Name == p.Name && q.Tier != "" }
	list := config.TenantPolicies()
	if i := slices.IndexFunc(list, isReplaced); i >= 0 && p.For == schema.ForAll {
		warnings = append(warnings, fmt.Sprintf("%s replaces the limit of this name of tier %s in the plugin's config (%s): to "+
			"have both, take another name", p.Key(), list[i].Tier, list[i].Describe()))
	}
	return warnings
}

// tiersOfTenants returns the tiers that rows of tenants set, by tenant, for the tenants of policies. It omits a tier
// that does not exist: the default tier applies to its tenants.
func tiersOfTenants(
	ctx context.Context, q querier, config *resolve.Plan, namespace string, list []Policy,
) (map[string]string, error) {
	var ids, configured []string
	for _, p := range list {
		if p.Tenant != "" {
			ids = append(ids, p.Tenant)
		}
	}
	if len(ids) == 0 {
		return nil, nil
	}
	if config != nil {
		configured = config.Tiers()
	}
	rows, err := collect[Tenant](ctx, q, tenantTable.selects+` t WHERE id = ANY($1) AND tier <> '' AND (tier = ANY($2)
		OR EXISTS (SELECT FROM rate_limiter.tiers WHERE name = t.tier)
		OR EXISTS (SELECT FROM rate_limiter.policies p WHERE p.tier = t.tier AND p.namespace = $3))`,
		ids, configured, namespace)
	if err != nil {
		return nil, fmt.Errorf("read the tiers of tenants: %w", err)
	}
	tiers := map[string]string{}
	for _, t := range rows {
		tiers[t.ID] = t.Tier
	}
	return tiers, nil
}

// addTierWarnings warns once of each tier that does not exist without these policies.
func (r *Review) addTierWarnings(ctx context.Context, q querier, config *resolve.Plan, list []Policy) error {
	checked := map[string]bool{}
	for _, p := range list {
		if p.Tier == "" || checked[p.Tier] {
			continue
		}
		checked[p.Tier] = true
		has, err := hasTier(ctx, q, config, p.Tier, p)
		if err != nil {
			return err
		}
		if !has {
			r.Warnings = append(r.Warnings, missingTier(config, p.Tier, p.Key().String()+" is the first of it"))
		}
	}
	return nil
}

// rowsToCompare returns the rows that a guard compares with policies of one namespace, and those that may replace them.
// It returns none for policies that are neither shared nor counted per tenant.
func rowsToCompare(ctx context.Context, q querier, list ...Policy) ([]Policy, error) {
	var w where
	w.equal("namespace", list[0].Key().Namespace)
	var tenants []string
	for _, p := range list {
		if p.Scope == scopeTenant {
			tenants = append(tenants, p.Tenant)
		}
	}
	switch {
	case slices.ContainsFunc(list, Policy.MayDenyAll):
	case len(tenants) > 0:
		w.add("(tier <> '' OR scope IN ('global', 'endpoint') OR tenant = ANY(%s))", tenants)
	default:
		return nil, nil
	}
	return policiesWhere(ctx, q, &w, 0)
}

// TenantWarnings returns what an operator should check of a tenant: that neither the config nor the database has its
// tier. A nil config is unknown: it may have the tier.
func (s *DB) TenantWarnings(ctx context.Context, config *resolve.Plan, t Tenant) ([]string, error) {
	if t.Tier == "" {
		return nil, nil
	}
	has, err := hasTier(ctx, s.pool, config, t.Tier, Policy{})
	if has || err != nil {
		return nil, fail("find tier "+t.Tier, err)
	}
	return []string{missingTier(config, t.Tier, "the default tier applies")}, nil
}

// policyWarning returns a warning if neither the config nor the database has a policy of a name, else "". A nil config
// is unknown: it may have the policy. An empty name needs no warning.
func (s *DB) policyWarning(ctx context.Context, config *resolve.Plan, name string) (string, error) {
	isNamed := func(p *policy.Policy) bool { return p.Name == name }
	if name == "" || config != nil && slices.ContainsFunc(config.Policies(), isNamed) {
		return "", nil
	}
	rows, err := s.Policies(ctx, PolicyFilter{Name: name, Max: 1})
	switch {
	case err != nil || len(rows) > 0:
		return "", err
	case config == nil:
		return fmt.Sprintf("the database has no policy %q: unless the plugin's config has one, this changes nothing",
			name), nil
	}
	return fmt.Sprintf("no policy is named %q, in the plugin's config or in the database: "+
		"this changes nothing until there is one", name), nil
}

func missingTier(config *resolve.Plan, tier, consequence string) string {
	if config == nil {
		return fmt.Sprintf("the database has no tier %q: unless the plugin's config has it, %s", tier, consequence)
	}
	return fmt.Sprintf("no tier is named %q, in the plugin's config or in the database: %s", tier, consequence)
}

// hasTier reports whether the config or the database has a tier: as a row, or in an active policy. A written policy
// that must be new does not count.
func hasTier(ctx context.Context, q querier, config *resolve.Plan, tier string, written Policy) (bool, error) {
	if config != nil && slices.Contains(config.Tiers(), tier) {
		return true, nil
	}
	if _, err := tierTable.byKey(tier, tier)(ctx, q); err == nil || !IsMissing(err) {
		return err == nil, err
	}
	rows, err := policies(ctx, q, PolicyFilter{Tier: tier, Max: 2})
	return slices.ContainsFunc(rows, func(row Policy) bool {
		return written.Revision != Absent || canonical(row.Key()) != canonical(written.Key())
	}), err
}
