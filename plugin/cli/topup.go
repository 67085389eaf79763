package cli

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/policysync"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

var topUpCommand = &command{
	words: "topup", brief: "add to a calendar limit of a tenant until its period ends",
	about: `A top-up adds an amount to the limit of a policy with a period, such as month: to what applies otherwise, a
custom_limit or a multiplier included. It ends with the period, in the time zone of the tenant, and several add up. It
is an override: override list shows it, and override end takes it back. What is left of it when the period ends is
lost. A rolling limit has no period: raise it by a custom_limit with an end.

The database has the policy, or --config the plugin's config that has it. Without the config, --expires-at must say
when the period ends.

  ratelimit topup --tenant acme --policy monthly --amount 100000 --reason "launch, ticket 812"`,
	define: func(c *call) action {
		o := new(rows.Override)
		o.Kind = schema.KindTopUp
		for _, flag := range [...]struct{ name, usage string }{
			{"tenant", "the `tenant` whose limit it adds to (required)"},
			{"policy", "the name of the `policy` (required)"},
			{"amount", "how many `tokens` it adds (required)"},
			{"user", "only for this `user`, where the policy counts per user (default: for each)"},
			{"credential", "only for this `credential`, where the policy counts per credential (default: for each)"},
			{"endpoint", "only for this `endpoint`, where the policy counts per endpoint (default: for each)"},
			{"public_note", "the `note` that the tenant sees (default: nothing)"},
		} {
			field := schema.FieldNamed[schema.Override](flag.name)
			fieldFlag(c, field, &o.Override)
			defined := c.flags.Lookup(flagName(field))
			defined.Usage = flag.usage
			if strings.HasSuffix(flag.usage, "(required)") {
				c.wrongIf(func() bool { return !c.given(defined.Name) }, "--%s is required", defined.Name)
			}
		}
		c.flags.Func("expires-at", "when the period ends, only for a limit of a config that is not given",
			reads(parseInstant, &o.ExpiresAt))
		c.knownConfigFlag()
		dryRun := c.flags.Bool("dry-run", false,
			"show the limits before and after, and change nothing; needs --config or --server")
		c.wrongIf(func() bool { return *dryRun && !c.given("config") && !c.given("server") },
			"--dry-run needs --config or --server")
		write := c.writes(func() change {
			return ofOverride("added", change{method: http.MethodPost}, *o)
		})
		return func(ctx context.Context) error {
			if *dryRun {
				return c.previewTopUp(ctx, *o)
			}
			return write(ctx)
		}
	},
}

// previewTopUp shows what a top-up would change.
func (c *call) previewTopUp(ctx context.Context, o rows.Override) error {
	if given := c.configure; given != nil {
		c.configure = func(ctx context.Context, options *api.Options) error {
			if err := given(ctx, options); err != nil {
				return err
			}
			saved, err := policysync.Load(ctx, c.pool)
			if err == nil {
				snapshot, _ := policy.NewSnapshot(saved.Rows, nil)
				options.Decider.Policies.Store(options.Decider.Policies.Load().With(snapshot))
			}
			return err
		}
	}
	return c.withDoor(ctx, func(ctx context.Context, rest *answers.Client) error {
		r := ofOverride("", change{}, o)
		body := o.Override
		body.Tenant, body.Reason = "", c.change.reason
		var shown answers.OverridePreview
		if err := rest.Do(ctx, http.MethodPost, r.path+"/preview", nil, body, &shown); err != nil {
			return err
		}
		for _, warning := range shown.Warnings.Warnings {
			c.warn("%s", warning)
		}
		return c.print(&shown, func(out *page) {
			for _, l := range shown.Changes {
				out.line("%s: %s becomes %s until %s", l.Policy, schema.Amount(l.Before.Limit, l.Unit),
					schema.Amount(l.After.Limit, l.Unit), shown.End.Format(time.RFC3339))
			}
			if len(shown.Changes) == 0 {
				out.line("nothing would change: %s", shown.Why)
			}
		})
	})
}
