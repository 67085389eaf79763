package cli

import (
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/node/process"
)

// changeFlags holds the flags of every command that writes.
type changeFlags struct {
	actor, reason string
	wait          time.Duration
	within        spanFlag
}

// written is the result of a command that writes.
type written struct {
	What    string     `json:"-"`               // in words, without the version
	Version int64      `json:"version"`         // in which it is in force
	Row     any        `json:"row,omitempty"`   // as it is then
	Diff    any        `json:"diff,omitempty"`  // of apply
	Fleet   *enforcing `json:"fleet,omitempty"` // with --wait
	lines   func(*page)
}

// changeFlag defines the flags of a command that writes.
func (c *call) changeFlag() {
	c.flags.StringVar(&c.change.reason, "reason", "", "the `reason` for the change, for the audit log (required)")
	c.check(func() error {
		if strings.TrimSpace(c.change.reason) == "" {
			return wrong("--reason is required: why are you making this change?")
		}
		return nil
	})
	c.flags.StringVar(&c.change.actor, "actor", "",
		"the `name` of who makes the change, for the audit log (default $"+actorVariable+", user@host or the database user)")
}

// waitFlags defines --wait and what it counts as live.
func (c *call) waitFlags() {
	c.flags.Func("wait", "wait up to this `duration` until all live nodes enforce the change (5s if no duration is given)",
		func(text string) error { return process.ParseDuration(text, &c.change.wait) })
	c.flags.Lookup("wait").NoOptDefVal = defaultWait.String()
	c.liveFlag()
}

func (c *call) liveFlag() {
	c.change.within.length = rows.LiveWithin
	c.flags.Var(&c.change.within, "live-within",
		"treat nodes as live if they reported within this `duration` (default "+rows.LiveWithin.String()+")")
}

// newChange returns a change by the person who calls the program.
func (c *call) newChange(config *pgxpool.Config) (rows.Change, error) {
	by := rows.Change{Actor: c.actor(config.ConnConfig), Reason: c.change.reason}
	if namesCaller(by.Actor) {
		return by, wrong("actor %q: names that begin with token: or oidc: are reserved for the REST API; "+
			"set --actor or %s to another name", by.Actor, actorVariable)
	}
	return by, nil
}

// namesCaller reports whether an actor is, or looks like, that of what a caller of the REST API does.
func namesCaller(actor string) bool {
	name := strings.ToLower(strings.TrimSpace(actor))
	return strings.HasPrefix(name, "token:") || strings.HasPrefix(name, "oidc:")
}

// writeTo writes what was done, its version and, with --wait, how far that has come.
func (w *written) writeTo(out *page) {
	if w.lines != nil {
		w.lines(out)
	}
	out.line("%s; version %d", w.What, w.Version)
	if w.Fleet != nil {
		w.Fleet.writeTo(out, "")
	}
}

// seconds returns a duration as people read it.
func seconds(d time.Duration) string { return fmt.Sprintf("%.2f s", d.Seconds()) }
