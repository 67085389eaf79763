package app

import (
	"context"
	"slices"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/pgstore"
)

// doubtTier warns of a tier that no row names. It is no error: the plugin's config may know it.
func (c *call) doubtTier(ctx context.Context, s *pgstore.Store, tier string) {
	if tier == "" {
		return
	}
	tiers, err := s.Tiers(ctx)
	if err == nil && slices.ContainsFunc(tiers, func(t pgstore.Tier) bool { return t.Name == tier }) {
		return
	}
	if c.unnamed(ctx, s, pgstore.PolicyFilter{Tier: tier}, err) {
		c.warn("the database has no tier %q: unless the plugin's config knows it, the default tier applies", tier)
	}
}

// doubtPolicy warns of the name of a policy that no row has. It is no error: the plugin's config may have one.
func (c *call) doubtPolicy(ctx context.Context, s *pgstore.Store, name string) {
	if name != "" && c.unnamed(ctx, s, pgstore.PolicyFilter{Name: name}, nil) {
		c.warn("the database has no policy %q: unless the plugin's config has one, this changes nothing", name)
	}
}

// unnamed reports whether no policy is selected by f. The write has been made by then, so an error is only a warning.
func (c *call) unnamed(ctx context.Context, s *pgstore.Store, f pgstore.PolicyFilter, err error) bool {
	f.Max = 1
	var rows []pgstore.Policy
	if err == nil {
		rows, err = s.Policies(ctx, f)
	}
	if err != nil {
		c.warn("cannot check for a mistyped name: %v", err)
	}
	return err == nil && len(rows) == 0
}
