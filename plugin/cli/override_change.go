package cli

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

var overrideChangeCommands = []*command{
	{
		words: "override update", args: "ID", least: 1, most: 1,
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
		words: "override extend", args: "ID", least: 1, most: 1,
		brief: "let an override end later, in place",
		about: `The override keeps its id, author and reason; the reason of the change is in the audit.

  ratelimit override extend 7 --by 3d --reason "the launch goes on"`,
		define: func(c *call) action {
			var (
				by spanFlag
				at instantFlag
			)
			c.flags.Var(&by, "by", "end this `duration` after its present end, such as 90m, 2h or 7d")
			c.flags.Var(&at, "expires-at", "end at this `time`, such as 2026-01-31T12:00:00Z")
			permanent := c.flags.Bool("permanent", false, "never end")
			c.check(func() error { return c.exactlyOne("by", "expires-at", "permanent") })
			return c.changesOverride("extended", "change_reason", func(o *rows.Override) error {
				return extend(o, by.length, at.at, *permanent)
			})
		},
	},
}

// exactlyOne returns an error unless one of some flags is given.
func (c *call) exactlyOne(names ...string) error {
	given := 0
	text := ""
	for i, name := range names {
		if c.given(name) {
			given++
		}
		switch {
		case i > 0 && i == len(names)-1:
			text += " or "
		case i > 0:
			text += ", "
		}
		text += "--" + name
	}
	if given != 1 {
		return wrong("one of %s is required", text)
	}
	return nil
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
	for _, name := range [...]string{"limit", "window_size", "burst", "factor", "public_note"} {
		f := schema.FieldNamed(schema.OverrideFields(), name)
		fieldFlag(c, f, &edited.Override)
		fields = append(fields, f)
	}
	c.startFlags(edited)
	setEnd := c.expiryFlags(false)
	c.check(func() error {
		names := []string{"starts-at", "from", "expires-at", "expires-in", "permanent"}
		for _, f := range fields {
			names = append(names, flagName(f))
		}
		if !slices.ContainsFunc(names, c.given) {
			return wrong("nothing is to change: give a number, a time or --public-note")
		}
		return nil
	})
	return func(o *rows.Override) error {
		for _, f := range fields {
			if c.given(flagName(f)) {
				copyField(f.In(&edited.Override), f.In(&o.Override))
			}
		}
		if c.given("starts-at") || c.given("from") {
			o.StartsAt = edited.StartsAt
		}
		setEnd(o)
		return nil
	}
}

// copyField copies the text or the number of a field to that of another row.
func copyField(from, to any) {
	switch from := from.(type) {
	case *string:
		*to.(*string) = *from
	case *int64:
		*to.(*int64) = *from
	default:
		panic(fmt.Sprintf("cli: a %T cannot be copied", from))
	}
}

// changesOverride defines the flags of a command that changes the override of its argument, by edit. The reason is that
// of the override, or only of the change if it is a parameter.
func (c *call) changesOverride(done, reason string, edit func(*rows.Override) error) action {
	c.idArgument()
	query := url.Values{}
	c.overFlag(query)
	c.knownConfigFlag()
	return c.writes(func(ctx context.Context, rest *answers.Client) (written, error) {
		var current shownOverride
		err := rest.Get(ctx, c.path(overridesPath+"/{}"+every), nil, &current)
		o := current.Override
		if err == nil {
			err = edit(&o)
		}
		if err != nil {
			return written{}, err
		}
		if query.Del("overwrite"); !query.Has("revision") {
			query.Set("revision", fmt.Sprint(o.Revision))
		}
		return c.sendOverride(ctx, rest, done, change{method: http.MethodPut, query: query, reason: reason}, o)
	})
}
