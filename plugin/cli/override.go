package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

var overrideCommands = []*command{
	{
		words: "override list", brief: "list overrides, including expired ones not yet moved to the history",
		define: func(c *call) action {
			f := rows.OverrideFilter{OverrideMatch: rows.OverrideMatch{Expired: true}}
			c.flags.StringVar(&f.Tenant, "tenant", "", "only overrides of this `tenant`")
			c.flags.StringVar(&f.User, "user", "", "only overrides of this `user`")
			c.flags.StringVar(&f.Credential, "credential", "", "only overrides of this `credential`")
			c.flags.StringVar(&f.IP, "ip", "", "only overrides of this `address`")
			c.flags.StringVar(&f.Tag, "tag", "", "only exemptions of this `tag` of consumers")
			c.flags.StringVar(&f.Kind, "kind", "", "only overrides of this `kind`: ban, exempt, custom_limit or multiplier")
			c.flags.StringVar(&f.Source, "source", "", "only overrides of this `source`: commercial, scheduled or detector")
			c.flags.Func("state", "only overrides of this `state`: scheduled, in_force or ended", func(text string) error {
				f.State = text
				return oneOf(text, rows.OverrideStates)
			})
			c.complete("kind", schema.FieldNamed(schema.OverrideFields(), "kind").OneOf...)
			c.complete("source", schema.FieldNamed(schema.OverrideFields(), "source").OneOf...)
			c.complete("state", rows.OverrideStates...)
			ended := c.flags.Bool("ended", false, "list the history of ended overrides instead")
			c.afterFlag(&f.After)
			c.pageFlag(&f.Max)
			c.check(func() error {
				if *ended && f.State != "" {
					return wrong("use either --ended or --state, not both")
				}
				return nil
			})
			return c.reads(func(ctx context.Context, s *rows.DB) error {
				if *ended {
					return endedList.show(c, s.EachEndedOverride(ctx, f))
				}
				return overrideList.show(c, s.EachOverride(ctx, f))
			})
		},
	},
	{
		words: "override add",
		brief: "override the limits of a tenant, user, endpoint, credential or address",
		about: `An override is for a tenant, optionally narrowed to a user, an endpoint or both; or for a credential or
an address or network, within one tenant or everywhere. An exempt is also for a tag of consumers, or for an
endpoint of all tenants; it may add an endpoint to a tag or an address. Kinds:

  ban           deny all requests
  exempt        admit all requests
  custom_limit  replace the numbers of the policy given by --policy
  multiplier    scale all limits of the subject, or only those of --policy

One of --expires-in, --expires-at and --permanent is required. With --starts-at, nodes enforce the override from that
time on, without another change. Overrides of one kind may overlap if they start at different times: the last to start
applies.

  ratelimit override add --kind multiplier --factor 2 --tenant acme --expires-in 7d --reason "migration weekend"`,
		define: func(c *call) action {
			o, config := c.overrideFlags(), c.knownConfigFlag()
			c.startFlags(o)
			setEnd := c.expiryFlags(true)
			c.check(func() error {
				setEnd(o)
				return nil
			})
			return c.writesRows(func(ctx context.Context, s *rows.DB, by rows.Change) (written, error) {
				row, version, err := s.AddOverride(ctx, by, *o)
				if err == nil {
					c.warnOfWrite(s.OverrideWarnings(ctx, config.plan, config.isConsumer, row))
				}
				return written{What: "added " + row.String() + ", " + timesText(row), Version: version, Row: row}, err
			})
		},
	},
	{
		words: "override end", args: "ID", brief: "end an override early", least: 1, most: 1,
		define: func(c *call) action {
			var id int64
			c.check(func() (err error) {
				id, err = c.id()
				return err
			})
			return c.writesRows(func(ctx context.Context, s *rows.DB, by rows.Change) (written, error) {
				version, err := s.EndOverride(ctx, by, id)
				return written{What: fmt.Sprint("ended override ", id), Version: version}, err
			})
		},
	},
}

// overrideFlags defines an override but its end.
func (c *call) overrideFlags() *rows.Override {
	o := new(rows.Override)
	// The reason and the author are the change's; startFlags and expiryFlags define the start and the end.
	fields := schema.FieldsWithout(schema.OverrideFields(),
		"reason", "author", "starts_at", "expires_at", "permanent", "source")
	for i := range fields {
		fieldFlag(c, &fields[i], &o.Override)
	}
	c.flags.Lookup("kind").Usage += " (required)"
	c.check(func() error {
		if o.Kind == "" {
			return wrong("--kind is required: %s", strings.Join(fields[0].OneOf, ", "))
		}
		return nil
	})
	return o
}

// startFlags defines when an override begins.
func (c *call) startFlags(o *rows.Override) {
	var at instantFlag
	c.flags.Var(&at, "starts-at", "begin at this `time`, such as 2026-01-31T12:00:00Z (default: at once)")
	c.check(func() error {
		o.StartsAt = at.at
		return nil
	})
}

// expiryFlags defines when an override ends, and returns what sets that of an override with its start. At most one of
// them may be given, and if required one must be.
func (c *call) expiryFlags(required bool) func(*rows.Override) {
	var (
		in spanFlag
		at instantFlag
	)
	c.flags.Var(&in, "expires-in",
		"expire this `duration` after the start, such as 90m, 2h or 7d (without --starts-at by this machine's clock)")
	c.flags.Var(&at, "expires-at", "expire at this `time`, such as 2026-01-31T12:00:00Z")
	permanent := c.flags.Bool("permanent", false, "never expire: stay in force until ended by override end")
	c.check(func() error {
		var given []string
		for _, name := range [...]string{"expires-in", "expires-at", "permanent"} {
			if c.given(name) {
				given = append(given, "--"+name)
			}
		}
		if len(given) > 1 {
			return wrong("use only one of %s", strings.Join(given, " and "))
		}
		if required && in.length == 0 && at.at.IsZero() && !*permanent {
			return wrong("--expires-in or --expires-at is required, or --permanent for an override that never expires")
		}
		return nil
	})
	return func(o *rows.Override) {
		switch {
		case in.length > 0:
			from := c.now()
			if !o.StartsAt.IsZero() {
				from = o.StartsAt
			}
			o.ExpiresAt, o.Permanent = from.Add(in.length), false
		case !at.at.IsZero():
			o.ExpiresAt, o.Permanent = at.at, false
		case *permanent:
			o.ExpiresAt, o.Permanent = time.Time{}, true
		}
	}
}

// overrideList and endedList are how overrides are shown: those that hold or have expired, and those of the history.
var (
	overrideList = listing[rows.Override]{
		"ID|KIND|SUBJECT|CHANGE|STATE|STARTS|EXPIRES|SOURCE|AUTHOR|REASON",
		func(o rows.Override) []any {
			expires := any(o.ExpiresAt)
			if o.Permanent {
				expires = "never"
			}
			return []any{
				o.ID, kindCell(o.Kind), o.Subject(), changeText(o.Override), strings.ReplaceAll(o.State, "_", " "),
				o.StartsAt, expires, o.Source, o.Author, o.Reason,
			}
		},
	}
	endedList = listing[rows.EndedOverride]{
		"ID|KIND|SUBJECT|CHANGE|ENDED|BY|WHY|ADDED BY|FOR",
		func(o rows.EndedOverride) []any {
			return []any{
				o.ID,
				o.Kind,
				o.Subject(),
				changeText(o.Override.Override),
				o.EndedAt,
				o.EndedBy,
				o.EndReason,
				o.Author,
				o.Reason,
			}
		},
	}
)

// timesText returns when an override begins and ends.
func timesText(o rows.Override) string {
	text := ""
	if !o.StartsAt.IsZero() {
		text = "from " + o.StartsAt.UTC().Format(time.RFC3339) + " "
	}
	if o.Permanent {
		return text + "permanently"
	}
	return text + "until " + o.ExpiresAt.UTC().Format(time.RFC3339)
}

// oneOf returns an error unless a text is one of a list.
func oneOf(text string, list []string) error {
	if slices.Contains(list, text) {
		return nil
	}
	return fmt.Errorf("must be one of %s", strings.Join(list, ", "))
}

// changeText returns what an override does to limits; "" for a ban and an exemption.
func changeText(o schema.Override) string {
	var text string
	switch {
	case o.Limit > 0:
		text = perWindow(o.Limit, o.WindowSize)
		if o.Burst > 0 {
			text += fmt.Sprintf(", burst %d", o.Burst)
		}
	case o.Factor > 0:
		text = "× " + formatFactor(o.Factor)
	}
	if o.Policy != "" {
		text = o.Policy + ": " + text
	}
	return text
}
