package cli

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
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

// namesOf completes names of a kind that begin with what is typed; of policies all. Without a database or a server that
// answers in time there are none: a shell shows no errors.
func (c *call) namesOf(kind string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, typed string) (names []string, _ cobra.ShellCompDirective) {
		ctx, cancel := context.WithTimeout(cmd.Context(), completeTime)
		defer cancel()
		path, query, most := policiesPath, url.Values{}, 0
		switch kind {
		case "tenant":
			path, query, most = orgsPath, url.Values{"prefix": {typed}, "usage": {"true"}}, maxCompleted
		case "tier":
			path, query = tiersPath, url.Values{"prefix": {typed}}
		}
		err := c.withDoor(ctx, func(ctx context.Context, rest *answers.Client) error {
			type row struct {
				ID   any
				Name string // a tenant has an id alone
			}
			for r, err := range answers.Each[row](ctx, rest, path, query, most) {
				if err != nil {
					return err
				}
				names = append(names, cmp.Or(r.Name, fmt.Sprint(r.ID)))
			}
			return nil
		})
		if err != nil {
			cobra.CompDebugln(err.Error(), false)
		}
		slices.Sort(names)
		return slices.Compact(names), cobra.ShellCompDirectiveNoFileComp
	}
}
