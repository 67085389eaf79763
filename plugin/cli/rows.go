package cli

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/policysync"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// readSaved returns what a node has saved, however many rows.
func readSaved(file string) (policysync.Saved, error) {
	saved, err := policysync.ReadFile(file, math.MaxInt)
	if err != nil {
		return saved, fmt.Errorf("--snapshot: %w", err)
	}
	return saved, nil
}

// savedRows returns the rows that a node has saved, without its candidate.
func savedRows(file string) (policy.Rows, error) {
	saved, err := readSaved(file)
	return saved.Rows, err
}

// rowSubject is whom rows are read for.
type rowSubject struct {
	tenant, credential, ip string
	tags                   []string // of the consumer
	tiers                  []string // that the request or the config may put the tenant in
}

// overridePage is how many overrides are read at once where all are looked through.
const overridePage = 10_000

// rowsFor reads the rows that can matter to a subject: it does not load the database as a node does.
func rowsFor(ctx context.Context, s *rows.Store, subject rowSubject) (policy.Rows, error) {
	list, err := generalRows(ctx, s)
	if err != nil {
		return list, err
	}
	if subject.tenant != "" {
		if err := addTenant(ctx, s, &subject, &list); err != nil {
			return list, err
		}
	}
	for _, tier := range subject.tiers {
		if err := addPolicies(ctx, s, rows.PolicyFilter{Tier: tier}, &list); err != nil {
			return list, err
		}
	}
	if err := addGeneralPolicies(ctx, s, subject, &list); err != nil {
		return list, err
	}
	return list, addOverrides(ctx, s, subject, &list)
}

// addGeneralPolicies adds the policies for all and for anonymous requests, and those of the credential and of networks.
func addGeneralPolicies(ctx context.Context, s *rows.Store, subject rowSubject, list *policy.Rows) error {
	filters := []rows.PolicyFilter{{For: schema.ForAll}, {For: schema.ForAnonymous}}
	if subject.credential != "" {
		filters = append(filters, rows.PolicyFilter{Credential: subject.credential})
	}
	if subject.ip != "" {
		filters = append(filters, rows.PolicyFilter{Networks: true})
	}
	for _, f := range filters {
		if err := addPolicies(ctx, s, f, list); err != nil {
			return err
		}
	}
	return nil
}

// addTenant adds the rows of a tenant, and its tier to those that are read.
func addTenant(ctx context.Context, s *rows.Store, subject *rowSubject, list *policy.Rows) error {
	t, err := s.Tenant(ctx, subject.tenant)
	if missing := new(rows.NotFoundError); err != nil && !errors.As(err, &missing) {
		return err
	}
	if err == nil {
		list.Tenants = append(list.Tenants, t.Tenant)
		subject.tiers = append(subject.tiers, t.Tier)
	}
	slices.Sort(subject.tiers)
	subject.tiers = slices.DeleteFunc(slices.Compact(subject.tiers), func(tier string) bool { return tier == "" })
	return addPolicies(ctx, s, rows.PolicyFilter{Tenant: subject.tenant}, list)
}

// generalRows reads the version of the rows, the tiers and the costs of endpoints.
func generalRows(ctx context.Context, s *rows.Store) (policy.Rows, error) {
	fleet, err := s.Fleet(ctx, 0)
	if err != nil {
		return policy.Rows{}, err
	}
	list := policy.Rows{Version: fleet.Version}
	tiers, err := s.Tiers(ctx, rows.TierFilter{})
	for _, t := range tiers {
		list.Tiers = append(list.Tiers, policy.TierRow{Name: t.Name})
	}
	if err != nil {
		return list, err
	}
	for cost, err := range s.EachCost(ctx, rows.CostFilter{}) {
		if err != nil {
			return list, err
		}
		list.Costs = append(list.Costs, policy.CostRow{ID: cost.ID, Cost: cost.Cost})
	}
	return list, nil
}

// allRows reads all rows, as a node does.
func allRows(ctx context.Context, s *rows.Store) (policy.Rows, error) {
	list, err := generalRows(ctx, s)
	if err != nil {
		return list, err
	}
	for t, err := range s.EachTenant(ctx, rows.TenantFilter{}) {
		if err != nil {
			return list, err
		}
		list.Tenants = append(list.Tenants, t.Tenant)
	}
	if err := addPolicies(ctx, s, rows.PolicyFilter{}, &list); err != nil {
		return list, err
	}
	for o, err := range s.EachOverride(ctx, rows.OverrideFilter{}) {
		if err != nil {
			return list, err
		}
		list.Overrides = append(list.Overrides, policy.Override{ID: o.ID, Override: o.Override})
	}
	return list, nil
}

func addPolicies(ctx context.Context, s *rows.Store, f rows.PolicyFilter, all *policy.Rows) error {
	list, err := s.Policies(ctx, f)
	for _, p := range list {
		all.Policies = append(all.Policies, policy.PolicyRow{ID: p.ID, Policy: p.Policy})
	}
	return err
}

// addOverrides adds the overrides of the tenant, of the credential, of the address and of the tags, and the exemptions
// of all tenants, each once. Those of networks may be of any size, so all overrides are looked through for an address.
func addOverrides(ctx context.Context, s *rows.Store, subject rowSubject, all *policy.Rows) error {
	filters := []rows.OverrideFilter{{Kind: policy.Exempt}}
	if subject.tenant != "" {
		filters = append(filters, rows.OverrideFilter{Tenant: subject.tenant})
	}
	if subject.credential != "" {
		filters = append(filters, rows.OverrideFilter{Credential: subject.credential})
	}
	if subject.ip != "" {
		filters = []rows.OverrideFilter{{}}
	}
	seen := map[int64]bool{}
	for _, f := range filters {
		f.Max = overridePage
		for more := true; more; {
			list, err := s.Overrides(ctx, f)
			if err != nil {
				return err
			}
			for _, o := range list {
				f.After = o.ID
				if subject.mayMatch(&o) && !seen[o.ID] {
					seen[o.ID] = true
					all.Overrides = append(all.Overrides, policy.Override{ID: o.ID, Override: o.Override})
				}
			}
			more = len(list) == overridePage
		}
	}
	return nil
}

// mayMatch reports whether an override can matter to the subject. Those of addresses are compared later.
func (r *rowSubject) mayMatch(o *rows.Override) bool {
	switch {
	case o.Tag != "":
		return slices.Contains(r.tags, o.Tag)
	case o.IP != "":
		return r.ip != ""
	case o.Credential != "":
		return o.Credential == r.credential
	}
	return o.Tenant == r.tenant || o.Tenant == ""
}
