package cli

import (
	"context"
	"errors"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/node/process"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

var tierCommands = []*command{
	{
		words: "tier list", brief: "list the tiers in the database (plugin configs may define more)",
		define: func(c *call) action {
			return c.reads(func(ctx context.Context, s *rows.DB) error {
				tiers, err := s.Tiers(ctx, rows.TierFilter{})
				if err != nil {
					return err
				}
				return c.print(listed(tiers), func(out *page) { tierTable(out, tiers) })
			})
		},
	},
	{
		words: "tier put", args: "NAME", brief: "create or update a tier", least: 1, most: 1,
		define: func(c *call) action {
			var t rows.Tier
			c.flags.StringVar(&t.Description, "description", "", "the `text` that describes the tier")
			c.revisionFlag(&t.Revision)
			return c.writesRows(func(ctx context.Context, s *rows.DB, by rows.Change) (written, error) {
				t.Name = c.arg()
				row, version, err := s.PutTier(ctx, by, t)
				return written{What: "put tier " + t.Name, Version: version, Row: row}, err
			})
		},
	},
	{
		words: "tier delete", args: "NAME", least: 1, most: 1,
		brief: "delete a tier; tenants and policies that name it are kept",
		define: func(c *call) action {
			var revision int64
			c.revisionFlag(&revision)
			return c.writesRows(func(ctx context.Context, s *rows.DB, by rows.Change) (written, error) {
				version, err := s.DeleteTier(ctx, by, c.arg(), revision)
				return written{What: "deleted tier " + c.arg(), Version: version}, err
			})
		},
	},
}

var tenantCommands = []*command{
	{
		words: "tenant list", brief: "list the tenants that have a tier or a time zone",
		define: func(c *call) action {
			var f rows.TenantFilter
			c.flags.StringVar(&f.Tier, "tier", "", "only tenants of this `tier`")
			c.flags.StringVar(&f.After, "after", "", "only tenants after this `id`, to show the next page")
			c.pageFlag(&f.Max)
			return c.reads(func(ctx context.Context, s *rows.DB) error {
				return tenantList.show(c, s.EachTenant(ctx, f))
			})
		},
	},
	{
		words: "tenant get", args: "ID", brief: "show the tier and time zone of a tenant", least: 1, most: 1,
		define: func(c *call) action {
			return c.reads(func(ctx context.Context, s *rows.DB) error {
				t, err := s.Tenant(ctx, c.arg())
				if err != nil {
					return err
				}
				return c.print(t, func(out *page) { tenantList.add(out, t) })
			})
		},
	},
	{
		words: "tenant set", args: "ID", brief: "set the tier and time zone of a tenant", least: 1, most: 1,
		about: `Flags that are not given leave their fields unchanged. An empty one, such as --tier "", sets the default.`,
		define: func(c *call) action {
			var t rows.Tenant
			config := c.knownConfigFlag()
			fields := schema.FieldsWithout(schema.TenantFields(), "id") // the argument
			for i := range fields {
				fieldFlag(c, &fields[i], &t.Tenant)
			}
			c.revisionFlag(&t.Revision)
			c.check(func() error {
				if !c.given("tier") && !c.given("time-zone") {
					return wrong("--tier or --time-zone is required")
				}
				return nil
			})
			return c.writesRows(func(ctx context.Context, s *rows.DB, by rows.Change) (written, error) {
				t.ID = c.arg()
				return c.setTenant(ctx, s, by, t, config)
			})
		},
	},
	{
		words: "tenant delete",
		args:  "ID",
		brief: "delete the tier and time zone of a tenant; its policies and overrides are kept",
		least: 1,
		most:  1,
		define: func(c *call) action {
			var revision int64
			c.revisionFlag(&revision)
			return c.writesRows(func(ctx context.Context, s *rows.DB, by rows.Change) (written, error) {
				version, err := s.DeleteTenant(ctx, by, c.arg(), revision)
				return written{What: "deleted tenant " + c.arg(), Version: version}, err
			})
		},
	},
}

// setTenant sets the given fields of a tenant, and keeps the others. It writes only over the revision it read, so no
// concurrent change is lost.
func (c *call) setTenant(
	ctx context.Context,
	s *rows.DB,
	by rows.Change,
	t rows.Tenant,
	config *knownConfig,
) (written, error) {
	current, err := s.Tenant(ctx, t.ID)
	if missing := new(rows.NotFoundError); err != nil && !errors.As(err, &missing) {
		return written{}, err
	}
	if !c.given("tier") {
		t.Tier = current.Tier
	}
	if !c.given("time-zone") {
		t.TimeZone = current.TimeZone
	}
	if t.Revision == 0 {
		t.Revision = current.Revision
	}
	row, version, err := s.SetTenant(ctx, by, t)
	if err != nil {
		return written{}, err
	}
	c.warnOfWrite(s.TenantWarnings(ctx, config.plan, row))
	return written{What: "set tenant " + t.ID, Version: version, Row: row}, nil
}

func tierTable(out *page, tiers []rows.Tier) {
	columns(
		out,
		"TIER|DESCRIPTION|REVISION",
		tiers,
		func(t rows.Tier) []any { return []any{t.Name, t.Description, t.Revision} },
	)
}

// tenantList is how tenants are shown.
var tenantList = listing[rows.Tenant]{"TENANT|TIER|TIME ZONE|REVISION", func(t rows.Tenant) []any {
	return []any{t.ID, orDefault(t.Tier, "(from the request)"), orDefault(t.TimeZone, "UTC"), t.Revision}
}}

// listed returns a list that is [] in JSON when it is empty.
func listed[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

// revisionFlag defines the optimistic lock of a write.
func (c *call) revisionFlag(to *int64) {
	c.flags.Func(
		"revision",
		"fail unless the row still has this `revision` (default: any)",
		func(text string) error {
			var n countFlag
			err := n.Set(text)
			*to = n.n
			return err
		},
	)
}

// pageFlag defines how many rows are listed.
func (c *call) pageFlag(to *int) {
	c.flags.Func(
		"max",
		"show at most this `number` of rows (default: all)",
		func(text string) error { return process.ParseInt(text, 1, to) },
	)
}

// afterFlag defines where a page of rows with ids begins.
func (c *call) afterFlag(to *int64) {
	c.flags.Func("after", "only rows with an id above this `id`, to show the next page", func(text string) error {
		var n countFlag
		err := n.Set(text)
		*to = n.n
		return err
	})
}

// id returns the argument as a row's id.
func (c *call) id() (int64, error) {
	var n countFlag
	if err := n.Set(c.arg()); err != nil {
		return 0, wrong("%q is not an id: it %v", c.arg(), err)
	}
	return n.n, nil
}
