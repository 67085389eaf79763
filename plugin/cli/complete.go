package cli

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

const (
	completeTime = 2 * time.Second // how long a shell waits for names of the database
	maxCompleted = 100             // tenants
)

// complete defines the values that a shell completes for a flag.
func (c *call) complete(flag string, values ...string) {
	c.completeBy(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
}

func (c *call) completeBy(flag string, complete cobra.CompletionFunc) {
	if err := c.cobra.RegisterFlagCompletionFunc(flag, complete); err != nil {
		panic(err) // the flag is not defined yet, or completed already
	}
}

// completeNames has a shell complete the flags and the argument that name a tenant, a policy or a tier.
func (c *call) completeNames() {
	group, _, _ := strings.Cut(c.command.words, " ")
	argument := strings.Trim(c.command.args, "[]")
	for _, kind := range [...]string{"tenant", "policy", "tier"} {
		if c.flags.Lookup(kind) != nil {
			c.completeBy(kind, c.namesOf(kind))
		}
		if argument == strings.ToUpper(kind) || group == kind && (argument == "NAME" || argument == "ID") {
			c.cobra.ValidArgsFunction = c.namesOf(kind)
		}
	}
}

// namesOf completes names of the database. Without a database that answers in time there are none: a shell shows no
// errors.
func (c *call) namesOf(kind string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
		ctx, cancel := context.WithTimeout(cmd.Context(), completeTime)
		defer cancel()
		store, closeStore, err := c.open(ctx)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		defer closeStore()
		names, err := listNames(ctx, store, kind, typed)
		if err != nil {
			cobra.CompDebugln(err.Error(), false)
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

// listNames returns the names of a kind; of tenants and tiers those that begin with a text.
func listNames(ctx context.Context, s *rows.DB, kind, prefix string) (names []string, err error) {
	switch kind {
	case "tenant":
		for t, err := range s.EachTenant(ctx, rows.TenantFilter{Prefix: prefix, Usage: true, Max: maxCompleted}) {
			if err != nil {
				return nil, err
			}
			names = append(names, t.ID)
		}
	case "tier":
		tiers, err := s.Tiers(ctx, rows.TierFilter{Prefix: prefix})
		if err != nil {
			return nil, err
		}
		for _, t := range tiers {
			names = append(names, t.Name)
		}
	case "policy":
		for p, err := range s.EachPolicy(ctx, rows.PolicyFilter{}) {
			if err != nil {
				return nil, err
			}
			names = append(names, p.Name)
		}
		slices.Sort(names)
	}
	return slices.Compact(names), nil
}
