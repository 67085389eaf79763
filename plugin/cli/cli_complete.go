package cli

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/pgstore"
)

const (
	completeTime = 2 * time.Second // how long a shell waits for names of the database
	maxCompleted = 100             // names
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
	for _, kind := range [...]pgstore.NameKind{pgstore.TenantNames, pgstore.PolicyNames, pgstore.TierNames} {
		if c.flags.Lookup(string(kind)) != nil {
			c.completeBy(string(kind), c.namesOf(kind))
		}
	}
	group, _, _ := strings.Cut(c.command.words, " ")
	switch args := strings.Trim(c.command.args, "[]"); {
	case args == "TENANT":
		group = string(pgstore.TenantNames)
	case args != "NAME" && args != "ID":
		return
	}
	switch kind := pgstore.NameKind(group); kind {
	case pgstore.TenantNames, pgstore.PolicyNames, pgstore.TierNames:
		c.cobra.ValidArgsFunction = c.namesOf(kind)
	}
}

// namesOf completes names of the database. Without a database that answers in time there are none: a shell shows no
// errors.
func (c *call) namesOf(kind pgstore.NameKind) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
		ctx, cancel := context.WithTimeout(cmd.Context(), completeTime)
		defer cancel()
		store, closeStore, err := c.open(ctx)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		defer closeStore()
		names, err := store.Names(ctx, kind, typed, maxCompleted)
		if err != nil {
			cobra.CompDebugln(err.Error(), false)
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}
