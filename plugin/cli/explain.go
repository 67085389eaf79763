package cli

import (
	"context"
	"slices"
	"time"

	"github.com/spf13/pflag"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

var explainCommand = &command{
	words: "explain", brief: "show which limits apply to a request, and why",
	about: `It shows the policies and overrides that matched, and which of them won. The plugin's config is read from a
decK file; policies and overrides from the database, or from a node's snapshot file with --snapshot. --config-only
uses the config alone, and so does explain without a database, with a warning. If a candidate is open, it also shows
what that decides, and whether it is enforced for the tenant. Nothing is spent. With --at, it shows what applies at
another time: overrides begin and expire.

With --request-id alone, it shows what denied that request, from the recent denials in the database.

  ratelimit explain --config kong.yml --tenant acme --user u_42 --endpoint "POST /records/{id}"
  ratelimit explain --request-id 23362be3186b8717e61304664ec43cb1`,
	define: func(c *call) action {
		config, request := c.configFlag(), c.requestFlag()
		list := c.rowsFlag()
		var at time.Time
		c.flags.Func("at", "what applies at this `time`, such as 2026-01-31T12:00:00Z (default: now)",
			reads(parseInstant, &at))
		c.outputFlag()
		requestID := c.requestIDFlag()
		c.check(func() error { return c.explainsOneThing(*requestID) })
		return func(ctx context.Context) error {
			if *requestID != "" {
				return c.withDoor(ctx, func(ctx context.Context, rest *answers.Client) error {
					return c.showRequest(ctx, rest, *requestID, nil)
				})
			}
			if at.IsZero() {
				at = c.now()
			}
			return c.explain(ctx, config, request, list, limit.Micros(at.UnixMicro()))
		}
	},
}

// explainsOneThing returns an error if a request is named by its id and described too.
func (c *call) explainsOneThing(requestID string) (err error) {
	if requestID == "" {
		return nil
	}
	c.flags.Visit(func(f *pflag.Flag) {
		if !slices.Contains([]string{"request-id", "database", "database-file", "output"}, f.Name) {
			err = wrong("--%s: describes a request, and --request-id names one: leave out either", f.Name)
		}
	})
	return err
}

type explanation struct {
	Config    string `json:"config"` // file:line and path of the config
	AppliesTo string `json:"config_on"`
	Denied    string `json:"refused,omitempty"` // why the config denies a request without a tenant or user
	resolve.Explanation
	TierSeenAt time.Time          `json:"tier_seen_at,omitzero"`
	OtherTiers []answers.SeenTier `json:"other_tiers,omitempty"` // that nodes see beside it

	ShownOverrides []shownExplained `json:"overrides"`        // those of Explanation
	Faults         []policy.Fault   `json:"faults,omitempty"` // rows that do not compile
}

// shownExplained is an override of an explanation in JSON and YAML, with its row as override list shows it.
type shownExplained struct {
	Row rows.Override `json:"row"`
	resolve.ExplainedOverride
}

func (c *call) explain(
	ctx context.Context, f *configFlags, r *requestFlags, from *rowsFlags, at limit.Micros,
) error {
	config, snapshot, err := c.load(f)
	if err != nil {
		return err
	}
	if from.snapshot == "" && !from.none && !c.hasDatabase() {
		c.warn("no database is configured, so this is what the config alone decides, without policies and overrides " +
			"at run time: use --database or --database-file, or --config-only if that is meant")
		from.none = true
	}
	e := explanation{Config: config.Where, AppliesTo: config.String()}
	r.tiers = api.NewTiers(nil, snapshot.Namespace(), config.Consumers, config.Changed)
	if snapshot, e.Faults, err = c.withRows(ctx, snapshot, r, from); err != nil {
		return err
	}
	id, err := r.identify(snapshot.Rules, f.route)
	if err != nil {
		return err
	}
	e.Explanation = snapshot.Explain(&id, at)
	if id.Tenant.Kind == identity.Tenant && r.tier == "" {
		tier := r.tiers.Describe(snapshot, &id, at)
		e.TierFrom, e.TierSeenAt, e.OtherTiers = tier.Source, tier.SeenAt, tier.Others
	}
	if e.ExemptBy == "" {
		e.Denied = denialOf(&id)
	}
	e.ShownOverrides = make([]shownExplained, len(e.Overrides))
	for i, o := range e.Overrides {
		row := rows.Override{ID: o.Override.ID, Override: o.Override.Override}
		e.ShownOverrides[i] = shownExplained{row, o}
	}
	return c.print(e, e.writeTo)
}

// denialOf returns why a request is denied before any limit is checked.
func denialOf(id *identity.Identity) string {
	switch {
	case id.TenantDenied:
		return "denied: the request has no tenant, and on_missing_tenant is deny"
	case id.UserDenied:
		return "denied if a limit per user applies: the request has no user, and on_missing_user is deny"
	}
	return ""
}

// writeTo adds the explanation to a page, below when a ban ends, which JSON has in microseconds.
func (e *explanation) writeTo(out *page) {
	if e.Verdict == "banned" && e.Until > 0 {
		out.marked(redMark, "banned until %s", time.UnixMicro(int64(e.Until)).UTC().Format(time.RFC3339))
	}
	out.show(e)
}
