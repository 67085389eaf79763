package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/migrations"
)

var migrateCommands = []*command{
	{
		words: "migrate up", brief: "migrate the database schema to the version of this program",
		about: `Connect as the role that owns the schema, which should not be a superuser: migrations/README.md shows
how to create it, and lists the grants to repeat after a migration. Concurrent runs are safe: the second waits for the
first.`,
		define: func(c *call) action {
			return c.migrates(func(ctx context.Context, config *pgx.ConnConfig) error { return c.migrateUp(ctx, config) })
		},
	},
	{
		words: "migrate down", brief: "revert the last migration, deleting the data in its tables and columns",
		about: `Without --yes, it shows what would be deleted and changes nothing.`,
		define: func(c *call) action {
			yes := c.flags.Bool("yes", false, "revert, and delete the data")
			return c.migrates(
				func(ctx context.Context, config *pgx.ConnConfig) error { return c.migrateDown(ctx, config, *yes) },
			)
		},
	},
	{
		words: "migrate status", brief: "show which migrations are applied",
		define: func(c *call) action {
			return c.migrates(func(ctx context.Context, config *pgx.ConnConfig) error { return c.migrateStatus(ctx, config) })
		},
	},
}

// loss is a table that a migration made; or a column that it gave to a table, of which the empty text says nothing.
type loss struct{ table, column string }

// lostWith is what is lost when a migration is taken back, by its number.
var lostWith = map[int64][]loss{
	1:  {{table: "audit"}, {table: "changes"}, {table: "version"}},
	2:  {{table: "policies"}, {table: "tenants"}, {table: "tiers"}},
	3:  {{table: "override_history"}, {table: "overrides"}},
	4:  {{table: "nodes"}},
	5:  {{"policies", "accuracy"}},
	6:  {{table: "answers"}, {table: "tokens"}},
	7:  {},
	8:  {},
	9:  {{"override_history", "public_note"}, {"overrides", "public_note"}, {"policies", "public_note"}},
	10: {},
	11: {{"nodes", "first_reported_at"}},
	12: {{"policies", "description"}},
	13: {{"override_history", "tag"}, {"overrides", "tag"}},
	14: {{"policies", "settle"}},
	15: {
		{table: "usage_batches"},
		{table: "usage_days"},
		{table: "usage_hours"},
		{table: "usage_minutes"},
		{table: "usage_names"},
		{table: "usage_nodes"},
		{table: "usage_sources"},
		{table: "usage_state"},
	},
	16: {{table: "outbox"}, {table: "outbox_cursors"}, {table: "outbox_state"}},
	17: {{table: "abuse_denials"}, {table: "abuse_state"}, {table: "abuse_steps"}, {table: "abuse_tenants"}},
	18: {{table: "quota_notices"}, {"usage_state", "changed_since"}, {"usage_state", "checked_at"}},
	19: {{table: "webhook_deliveries"}, {table: "webhook_secrets"}, {table: "webhooks"}},
	20: {{"policies", "fair"}},
	21: {},
	22: {{table: "webhook_denials"}},
	23: {{table: "candidate_policies"}, {table: "candidate_tenants"}, {table: "candidates"}},
	24: {{"override_history", "starts_at"}, {"overrides", "starts_at"}},
	25: {{table: "candidate_counts"}, {table: "candidate_reports"}, {table: "candidate_sources"}},
	26: {
		{"candidate_policies", "credential"},
		{"candidate_policies", "for"},
		{"candidate_policies", "ip"},
		{"candidate_policies", "user"},
		{"policies", "credential"},
		{"policies", "for"},
		{"policies", "ip"},
		{"policies", "user"},
	},
	27: {{table: "recent_denial_counts"}, {table: "recent_denials"}},
	28: {},
	29: {{table: "costs"}},
	30: {},
	31: {},
	32: {{"nodes", "leases"}, {"nodes", "redis"}},
	33: {},
	34: {{table: "tenant_tiers"}},
	35: {
		{"recent_denials", "capacity"},
		{"recent_denials", "cost"},
		{"recent_denials", "hidden_ids"},
		{"recent_denials", "override"},
		{"recent_denials", "penalty"},
		{"recent_denials", "policy_for"},
		{"recent_denials", "policy_id"},
		{"recent_denials", "policy_version"},
		{"recent_denials", "remaining"},
		{"recent_denials", "request_ids"},
		{"recent_denials", "tier"},
	},
	36: {},
}

func (c *call) migrates(do func(context.Context, *pgx.ConnConfig) error) action {
	c.databaseFlag()
	c.outputFlag()
	return func(ctx context.Context) error {
		config, err := c.connection()
		if err != nil {
			return err
		}
		return do(ctx, config.ConnConfig)
	}
}

// migration is one as it is shown.
type migration struct {
	Number    int64  `json:"number"`
	File      string `json:"file"`
	AppliedAt string `json:"applied_at,omitempty"`               // RFC 3339; "": it is not applied
	Newer     bool   `json:"applied_by_newer_program,omitempty"` // it has no file here
}

// name returns what a table calls a migration.
func (m migration) name() string {
	if m.Newer {
		return fmt.Sprintf("%05d (applied by a newer program)", m.Number)
	}
	return m.File
}

func shown(list []migrations.Migration) []migration {
	all := []migration{}
	for _, m := range list {
		all = append(all, migration{m.Number, m.File, timeText(m.AppliedAt), m.File == ""})
	}
	return all
}

func (c *call) migrateUp(ctx context.Context, config *pgx.ConnConfig) error {
	applied, err := migrations.Up(ctx, config)
	if err != nil && len(applied) == 0 {
		return err
	}
	printed := c.print(shown(applied), func(out *page) {
		for _, m := range applied {
			out.line("applied %s", m.File)
		}
		if len(applied) == 0 {
			out.line("nothing to do: the schema is up to date")
		}
	})
	if err != nil {
		return errors.Join(err, printed)
	}
	return errors.Join(printed, c.warnOfSuperuser(ctx, config))
}

// warnOfSuperuser warns when functions of the schema run with the rights of a superuser. It is no error: the migration
// that closes a hole must not wait until the owner is another one.
func (c *call) warnOfSuperuser(ctx context.Context, config *pgx.ConnConfig) error {
	owner, err := migrations.SuperuserOwner(ctx, config)
	if err == nil && owner != "" {
		c.warn("the schema is owned by the superuser %s: transfer it to a role without superuser rights, "+
			"as described in migrations/README.md", owner)
	}
	return err
}

func (c *call) migrateStatus(ctx context.Context, config *pgx.ConnConfig) error {
	all, err := migrations.Status(ctx, config)
	if err != nil {
		return err
	}
	if ahead := aheadOf(all); ahead != nil {
		c.warn("%v", ahead)
	}
	return c.print(shown(all), func(out *page) {
		columns(out, "MIGRATION|APPLIED", shown(all), func(m migration) []any { return []any{m.name(), m.AppliedAt} })
	})
}

// aheadOf returns an error if a newer program has applied migrations; it is nil if this program has them all.
func aheadOf(all []migrations.Migration) error {
	var applied, latest int64 // numbers of the last one that is applied, and of the last one that this program has
	for _, m := range all {
		if !m.AppliedAt.IsZero() {
			applied = m.Number
		}
		if m.File != "" {
			latest = m.Number
		}
	}
	if applied > latest {
		return &migrations.AheadError{Applied: applied, Latest: latest}
	}
	return nil
}

func (c *call) migrateDown(ctx context.Context, config *pgx.ConnConfig, yes bool) error {
	all, err := migrations.Status(ctx, config)
	if err != nil {
		return err
	}
	if ahead := aheadOf(all); ahead != nil {
		return ahead
	}
	var last migrations.Migration
	for _, m := range all {
		if !m.AppliedAt.IsZero() {
			last = m
		}
	}
	if last.Number == 0 {
		return errors.New("nothing to revert: no migration is applied")
	}
	if err := checkCandidate(ctx, config, last); err != nil {
		return err
	}
	if !yes {
		losses, err := countLosses(ctx, config, lostWith[last.Number])
		if err != nil {
			return err
		}
		return wrong("reverting %s deletes %s: use --yes to proceed", last.File, orDefault(losses, "no rows"))
	}
	undone, err := migrations.Down(ctx, config)
	if err != nil {
		return err
	}
	return c.print(shown([]migrations.Migration{undone}), func(out *page) { out.line("reverted %s", undone.File) })
}

// checkCandidate returns an error if a candidate is open and taking back a migration deletes some of it: what tenants
// are limited by would change without a trace in the audit.
func checkCandidate(ctx context.Context, config *pgx.ConnConfig, last migrations.Migration) (err error) {
	ofCandidates := func(l loss) bool { return strings.HasPrefix(l.table, "candidate") }
	if !slices.ContainsFunc(lostWith[last.Number], ofCandidates) {
		return nil
	}
	connection, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return fmt.Errorf("look for an open candidate: %w", err)
	}
	defer func() { err = errors.Join(err, connection.Close(context.WithoutCancel(ctx))) }()
	var name string
	err = connection.QueryRow(ctx, `SELECT name FROM rate_limiter.candidates WHERE state = 'open'`).Scan(&name)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil
	case err != nil:
		return fmt.Errorf("look for an open candidate: %w", err)
	}
	return fmt.Errorf("candidate %s is open, and reverting %s deletes what it changes: promote or drop it first, as in "+
		"ratelimit candidate drop %s", name, last.File, name)
}

// countLosses returns how many rows have something to lose.
func countLosses(ctx context.Context, config *pgx.ConnConfig, losses []loss) (text string, err error) {
	connection, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return "", fmt.Errorf("count the rows: %w", err)
	}
	defer func() { err = errors.Join(err, connection.Close(context.WithoutCancel(ctx))) }()
	for i, l := range losses {
		if i > 0 {
			text += ", "
		}
		statement := "SELECT count(*) FROM " + pgx.Identifier{"rate_limiter", l.table}.Sanitize()
		if l.column != "" {
			statement += " WHERE " + pgx.Identifier{l.column}.Sanitize() + "::text <> ''"
			text += "the " + l.column + " of "
		}
		var n int
		if err := connection.QueryRow(ctx, statement).Scan(&n); err != nil {
			return "", fmt.Errorf("count the rows of %s: %w", l.table, err)
		}
		text += counted(n, "row") + " of " + l.table
	}
	return text, nil
}
