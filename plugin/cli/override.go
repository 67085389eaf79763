package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

var overrideCommands = []*command{
	{
		words: "override list", brief: "list overrides, including expired ones not yet moved to the history",
		define: func(c *call) action {
			p := c.listFlags(rows.OverrideFilter{}, "expired")
			p.query.Set("expired", "true")
			ended := c.flags.Bool("ended", false, "list the history of ended overrides instead")
			c.wrongIf(func() bool { return *ended && c.given("state") }, "use either --ended or --state, not both")
			return c.asks(func(ctx context.Context, rest *answers.Client) error {
				path := overridesPath
				if *ended {
					path += "/ended"
				}
				return showRows(c, each[shownOverride](ctx, rest, path, p))
			})
		},
	},
	{
		words: "override add", brief: "override the limits of a tenant, user, endpoint, credential or address",
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
			o := c.overrideFlags()
			c.knownConfigFlag()
			c.startFlags(o)
			setEnd := c.expiryFlags(true)
			c.check(func() error {
				setEnd(o)
				return nil
			})
			return c.writes(func() change { return ofOverride("added", change{method: http.MethodPost}, *o) })
		},
	},
	{
		words: "override end", args: "ID", brief: "end an override early",
		define: func(c *call) action {
			c.idArgument()
			query := c.revisionFlag(url.Values{})
			return c.writes(func() change {
				path, what := c.path(overridesPath+"/{}"+every), "ended override "+c.arg()
				return change{method: http.MethodDelete, path: path, query: query, what: what}
			})
		},
	},
	{
		words: "override update", args: "ID",
		brief: "change the numbers, the times or the note of an override in place",
		about: `The override keeps its id and author, and gets the reason of the change. Flags that are not given leave their
fields unchanged. What the override is about cannot change, nor its start once it has begun: end it, and add another.
One that has ended does not change.

  ratelimit override update 7 --factor 3 --reason "they need more"`,
		define: func(c *call) action {
			edit := c.overrideEdits()
			return c.changesOverride("updated", "", edit)
		},
	},
	{
		words: "override extend", args: "ID", brief: "let an override end later, in place",
		about: `The override keeps its id, author and reason; the reason of the change is in the audit.

  ratelimit override extend 7 --by 3d --reason "the launch goes on"`,
		define: func(c *call) action {
			var (
				by time.Duration
				at time.Time
			)
			c.flags.Func("by", "end this `duration` after its present end, such as 90m, 2h or 7d", reads(parseSpan, &by))
			c.flags.Func("expires-at", "end at this `time`, such as 2026-01-31T12:00:00Z", reads(parseInstant, &at))
			permanent := c.flags.Bool("permanent", false, "never end")
			c.wrongIf(func() bool { return len(c.givenOf("by", "expires-at", "permanent")) != 1 },
				"one of --by, --expires-at or --permanent is required")
			return c.changesOverride("extended", "change_reason", func(o *rows.Override) error {
				return extend(o, by, at, *permanent)
			})
		},
	},
}

const overridesPath = "/v1/ratelimit/overrides"

// ofOverride returns a change of an override, at the path of its tenant if it has one.
func ofOverride(done string, r change, o rows.Override) change {
	body := o
	r.path = overridesPath
	if o.Tenant != "" {
		r.path, body.Tenant = "/v1/orgs/"+answers.PathSegment(o.Tenant)+"/ratelimit/overrides", ""
	}
	if o.ID > 0 {
		r.path += fmt.Sprint("/", o.ID)
	}
	r.body = body
	r.read = func(answer map[string]json.RawMessage, to *written) error {
		var row shownOverride
		err := json.Unmarshal(answer["override"], &row)
		to.What, to.Row = done+" "+row.String()+", "+timesText(row.Override), row
		return err
	}
	return r
}

// overrideFlags defines an override but its end.
func (c *call) overrideFlags() *rows.Override {
	o := new(rows.Override)
	// The reason and the author are the change's; startFlags and expiryFlags define the start and the end.
	fieldFlags(c, &o.Override, "reason", "author", "starts_at", "expires_at", "permanent", "source", "amount")
	c.flags.Lookup("kind").Usage += " (required)"
	c.wrongIf(func() bool { return o.Kind == "" }, "--kind is required: %s",
		strings.Join(schema.FieldNamed[schema.Override]("kind").OneOf, ", "))
	c.wrongIf(func() bool { return o.Kind == schema.KindTopUp }, "use ratelimit topup, which finds when the period ends")
	return o
}

func (c *call) startFlags(o *rows.Override) {
	c.flags.Func("starts-at", "begin at this `time`, such as 2026-01-31T12:00:00Z (default: at once)",
		reads(parseInstant, &o.StartsAt))
}

// expiryFlags defines when an override ends, and returns what sets that of an override with its start. At most one of
// them may be given, and if required one must be.
func (c *call) expiryFlags(required bool) func(*rows.Override) {
	var (
		in time.Duration
		at time.Time
	)
	c.flags.Func("expires-in",
		"expire this `duration` after the start, such as 90m, 2h or 7d (without --starts-at by this machine's clock)",
		reads(parseSpan, &in))
	c.flags.Func("expires-at", "expire at this `time`, such as 2026-01-31T12:00:00Z", reads(parseInstant, &at))
	permanent := c.flags.Bool("permanent", false, "never expire: stay in force until ended by override end")
	c.check(func() error {
		if given := c.givenOf("expires-in", "expires-at", "permanent"); len(given) > 1 {
			return wrong("use only one of %s", strings.Join(given, " and "))
		}
		if required && in == 0 && at.IsZero() && !*permanent {
			return wrong("--expires-in or --expires-at is required, or --permanent for an override that never expires")
		}
		return nil
	})
	return func(o *rows.Override) {
		switch {
		case in > 0:
			from := c.now()
			if !o.StartsAt.IsZero() {
				from = o.StartsAt
			}
			o.ExpiresAt, o.Permanent = from.Add(in), false
		case !at.IsZero():
			o.ExpiresAt, o.Permanent = at, false
		case *permanent:
			o.ExpiresAt, o.Permanent = time.Time{}, true
		}
	}
}

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

// extend sets a later end of an override.
func extend(o *rows.Override, by time.Duration, at time.Time, permanent bool) error {
	switch {
	case o.Permanent:
		return fmt.Errorf("override %d is permanent: it has no end", o.ID)
	case permanent:
		o.ExpiresAt, o.Permanent = time.Time{}, true
		return nil
	case by > 0:
		at = o.ExpiresAt.Add(by)
	}
	if !at.After(o.ExpiresAt) {
		return fmt.Errorf("override %d ends at %s, which is later: use override update to end it sooner",
			o.ID, o.ExpiresAt.UTC().Format(time.RFC3339))
	}
	o.ExpiresAt = at
	return nil
}

// overrideEdits defines what may change of an override, and returns what makes the changes that are given.
func (c *call) overrideEdits() func(*rows.Override) error {
	edited := new(rows.Override)
	var fields []*schema.Field[schema.Override]
	flags := []string{"starts-at", "expires-at", "expires-in", "permanent"}
	for _, name := range [...]string{"limit", "window_size", "burst", "factor", "public_note"} {
		f := schema.FieldNamed[schema.Override](name)
		fieldFlag(c, f, &edited.Override)
		fields, flags = append(fields, f), append(flags, flagName(f))
	}
	c.startFlags(edited)
	setEnd := c.expiryFlags(false)
	c.wrongIf(func() bool { return len(c.givenOf(flags...)) == 0 },
		"nothing is to change: give a number, a time or --public-note")
	return func(o *rows.Override) error {
		for _, f := range fields {
			if c.given(flagName(f)) {
				reflect.ValueOf(f.In(&o.Override)).Elem().Set(reflect.ValueOf(f.In(&edited.Override)).Elem())
			}
		}
		if c.given("starts-at") {
			o.StartsAt = edited.StartsAt
		}
		setEnd(o)
		return nil
	}
}

// changesOverride defines the flags of a command that changes the override of its argument, by edit. The reason is that
// of the override, or only of the change if it is a parameter.
func (c *call) changesOverride(done, reason string, edit func(*rows.Override) error) action {
	c.idArgument()
	query := c.overFlag()
	c.knownConfigFlag()
	return c.writesFound(func(ctx context.Context, rest *answers.Client) (change, error) {
		var current shownOverride
		err := rest.Get(ctx, c.path(overridesPath+"/{}"+every), nil, &current)
		o := current.Override
		if err == nil {
			err = edit(&o)
		}
		if err != nil {
			return change{}, err
		}
		if query.Del("overwrite"); !query.Has("revision") {
			query.Set("revision", fmt.Sprint(o.Revision))
		}
		return ofOverride(done, change{method: http.MethodPut, query: query, reason: reason}, o), nil
	})
}
