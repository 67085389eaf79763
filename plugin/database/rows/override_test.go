package rows_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// ban is an override that is accepted.
func ban() rows.Override {
	return row(schema.Override{Kind: "ban", Tenant: "acme", ExpiresAt: time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC)})
}

func row(o schema.Override) rows.Override { return rows.Override{Override: o} }

func permanent(o schema.Override) rows.Override {
	o.Permanent = true
	return row(o)
}

func add(t *testing.T, s *rows.DB, o rows.Override) rows.Override {
	t.Helper()
	written, _, err := s.AddOverride(t.Context(), ann, o)
	require.NoError(t, err, "add %v", o)
	return written
}

// age lets an override expire, by moving its life into the past.
func age(t *testing.T, pool *pgxpool.Pool, id int64, by time.Duration) {
	t.Helper()
	err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), `SELECT set_config('rate_limiter.reason', 'a test', true)`)
		if err == nil {
			_, err = tx.Exec(t.Context(), `UPDATE rate_limiter.overrides SET created_at = clock_timestamp() - $2::interval - interval '1 day',
				expires_at = clock_timestamp() - $2::interval WHERE id = $1`, id, by)
		}
		return err
	})
	require.NoError(t, err, "let override %d expire", id)
}

func TestOverrideIsReadAsItWasWritten(t *testing.T) {
	s, _ := open(t)
	for _, o := range []rows.Override{
		ban(),
		permanent(schema.Override{Kind: "exempt", Tenant: "acme", User: "bob", Reason: "our own", Author: "carl"}),
		row(schema.Override{
			Kind: "custom_limit", Tenant: "acme", User: "bob", Endpoint: "GET /a/{id}", Policy: "daily",
			Limit: 5, WindowSize: 60, Burst: 7, ExpiresAt: ban().ExpiresAt,
		}),
		row(schema.Override{
			Kind: "multiplier", Credential: "c", Factor: 500, ExpiresAt: ban().ExpiresAt, Source: "detector",
		}),
		permanent(schema.Override{Kind: "ban", IP: "2001:db8::/64"}),
	} {
		written := add(t, s, o)
		read, err := rows.Read[rows.Override](t.Context(), s, written.ID)
		if err != nil || read.ID == 0 || read.CreatedAt.IsZero() || !read.ExpiresAt.Equal(o.ExpiresAt) {
			t.Fatalf("%v is read as %+v (%v)", o, read, err)
		}
		want := o
		want.ID, want.Revision, want.CreatedAt, want.ExpiresAt = read.ID, 1, read.CreatedAt, read.ExpiresAt
		want.State, want.StartsAt = rows.StateInForce, read.StartsAt
		if o.Reason == "" {
			want.Reason, want.Author = ann.Reason, ann.Actor
		}
		if o.Source == "" {
			want.Source = "commercial"
		}
		assert.Equal(t, want, read, "%v as it is read", o)
	}
	for want, f := range map[int]rows.OverrideFilter{
		2: {Tenant: "acme", OverrideMatch: rows.OverrideMatch{User: "bob"}},
		1: {OverrideMatch: rows.OverrideMatch{Policy: "daily", Endpoint: "GET /a/{whatever}"}, After: 1, Max: 5},
		0: {OverrideMatch: rows.OverrideMatch{Endpoint: "GET /a"}},
	} {
		if list, err := s.Overrides(t.Context(), f); err != nil || len(list) != want {
			t.Errorf("%+v selects %v (%v), want %d", f, list, err, want)
		}
	}
}

func TestSecondOverrideOfOneKindForOneSubjectIsAConflict(t *testing.T) {
	s, pool := open(t)
	first := add(t, s, ban())
	_, _, err := s.AddOverride(t.Context(), ann, ban())
	wantConflict(t, "a second ban", err)
	if inTheWay := fmt.Sprint("override ", first.ID, " "); err != nil && !strings.Contains(err.Error(), inTheWay) {
		t.Errorf("%v, want %snamed", err, inTheWay)
	}
	add(t, s, permanent(schema.Override{Kind: "ban", IP: "2001:DB8::1"}))
	_, _, err = s.AddOverride(t.Context(), ann, permanent(schema.Override{Kind: "ban", IP: "2001:db8:0::1"}))
	wantConflict(t, "another spelling of an address", err)
	penalty := ban()
	penalty.Source = "detector"
	add(t, s, penalty)

	age(t, pool, first.ID, time.Second)
	second := add(t, s, ban())
	assert.NotEqual(t, first.ID, second.ID, "the new ban is the old row")
	ended, err := s.EndedOverrides(t.Context(), rows.OverrideFilter{Tenant: "acme"})
	if err != nil || len(ended) != 1 || ended[0].ID != first.ID {
		t.Errorf("the history is %v (%v), want the ban that had expired", ended, err)
	}
}

func TestOverridesOfOnePlaceMayStartAtDifferentTimes(t *testing.T) {
	s, pool := open(t)
	launch := func(day int) rows.Override {
		return row(schema.Override{
			Kind: "multiplier", Factor: 2000, Tenant: "acme", ExpiresAt: ban().ExpiresAt,
			StartsAt: time.Date(2099, 1, day, 0, 0, 0, 0, time.UTC),
		})
	}
	today := add(t, s, permanent(schema.Override{Kind: "multiplier", Factor: 1500, Tenant: "acme"}))
	first, second := add(t, s, launch(1)), add(t, s, launch(2))
	if first.Source != "scheduled" || first.State != rows.StateScheduled || !first.StartsAt.Equal(launch(1).StartsAt) {
		t.Errorf("made %+v, want it scheduled", first)
	}
	_, _, err := s.AddOverride(t.Context(), ann, launch(2))
	wantConflict(t, "another one with this start", err)
	begun := launch(3)
	begun.Tenant, begun.StartsAt = "globex", time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)
	begun = add(t, s, begun)
	assert.Equal(t, rows.StateInForce, begun.State, "made %+v", begun)
	over := launch(4)
	over.Tenant = "initech"
	over = add(t, s, over)
	unscheduled := launch(1)
	unscheduled.Tenant, unscheduled.StartsAt = "initech", time.Time{}
	expired := add(t, s, unscheduled)
	age(t, pool, expired.ID, time.Second)
	for want, match := range map[string]rows.OverrideMatch{
		fmt.Sprint([]int64{first.ID, second.ID, over.ID}):                                 {State: rows.StateScheduled},
		fmt.Sprint([]int64{today.ID, begun.ID}):                                           {State: rows.StateInForce},
		fmt.Sprint([]int64{expired.ID}):                                                   {State: rows.StateEnded},
		fmt.Sprint([]int64{today.ID, first.ID, second.ID, begun.ID, over.ID}):             {},
		fmt.Sprint([]int64{today.ID, first.ID, second.ID, begun.ID, over.ID, expired.ID}): {Expired: true},
	} {
		list, err := s.Overrides(t.Context(), rows.OverrideFilter{OverrideMatch: match})
		var ids []int64
		for _, o := range list {
			ids = append(ids, o.ID)
		}
		if got := fmt.Sprint(ids); err != nil || got != want {
			t.Errorf("%+v selects %s (%v), want %s", match, got, err, want)
		}
	}
	for want, o := range map[string]rows.Override{
		"override 2 changes the same at some time: while both are in force override 2 applies, because it starts later": today,
		"override 1 changes the same at some time: while both are in force override 3 applies, because it starts later": second,
		"": over,
	} {
		got, err := s.OverrideWarnings(t.Context(), nil, func(string) bool { return true }, o)
		if err != nil || strings.Join(got, "\n") != want {
			t.Errorf("%v is warned of by %q (%v), want %q", o, got, err, want)
		}
	}
}

func TestAnOverrideThatEndsAfterTheLastInstantOfJSONCanBeEnded(t *testing.T) {
	s, pool := open(t)
	pgtest.Exec(t, pool, `INSERT INTO rate_limiter.overrides (kind, tenant, reason, author, expires_at)
		VALUES ('ban', 'acme', 'why', 'ann', '20000-01-01')`)
	_, err := rows.Delete[rows.Override](t.Context(), s, ann, int64(1), rows.AnyRevision)
	assert.NoError(t, err)
}

// tidy tidies in batches of the size that the ratelimit command uses.
func tidy(ctx context.Context, s *rows.DB, keep rows.Retention) (rows.Tidied, error) {
	return s.Tidy(ctx, keep, rows.TidyBatch, func(rows.Tidied) {})
}

func TestTidyMovesWhatHasExpiredAndDropsWhatIsOld(t *testing.T) {
	s, pool := open(t)
	old, recent := add(t, s, ban()), ban()
	recent.User = "bob"
	recent = add(t, s, recent)
	age(t, pool, old.ID, 2*time.Hour)
	age(t, pool, recent.ID, time.Minute)
	report(t, pool, "n1", 0, 0)
	done, err := tidy(t.Context(), s, rows.Retention{Overrides: time.Hour, Changes: time.Hour, Nodes: time.Hour})
	if want := (rows.Tidied{Leader: true, Overrides: 1}); err != nil || done != want {
		t.Errorf("tidied %+v (%v), want %+v", done, err, want)
	}
	ended, err := s.EndedOverrides(t.Context(), rows.OverrideFilter{})
	if err != nil || len(ended) != 1 || ended[0].ID != old.ID || ended[0].EndReason != "expired" {
		t.Errorf("the history is %v (%v), want the one that expired long ago", ended, err)
	}
	done, err = tidy(t.Context(), s, rows.Retention{Overrides: time.Hour})
	if want := (rows.Tidied{Leader: true, Changes: 5, Nodes: 1}); err != nil || done != want {
		t.Errorf("without retention tidied %+v (%v), want %+v", done, err, want)
	}
	var version, pruned int64
	if err := pool.QueryRow(t.Context(), `SELECT version, pruned FROM rate_limiter.version`).Scan(&version, &pruned); err != nil || version != 5 || pruned != 5 {
		t.Errorf("version %d is pruned up to %d (%v), want 5 and 5", version, pruned, err)
	}
}

func TestTidyGoesOnBatchByBatchUntilNothingIsLeft(t *testing.T) {
	s, pool := open(t)
	const silent, batch = 25, 10
	pgtest.Exec(t, pool, `INSERT INTO rate_limiter.nodes (node, version, enforced_at, reported_at)
		SELECT 'n' || i, 0, now() - interval '9 days', now() - interval '9 days' FROM generate_series(1, $1) i`, silent)
	ended, end := context.WithCancel(t.Context())
	end()
	keep := rows.Retention{Overrides: time.Hour, Changes: time.Hour, Nodes: time.Hour}
	done, err := tidy(ended, s, keep)
	if !errors.Is(err, context.Canceled) || done.Left != silent {
		t.Errorf("when it is ended at once it says %+v (%v), want %d left", done, err, silent)
	}
	var progress []int64
	done, err = s.Tidy(t.Context(), keep, batch, func(sum rows.Tidied) { progress = append(progress, sum.Nodes) })
	require.NoError(t, err)
	assert.Equal(t, rows.Tidied{Leader: true, Nodes: silent}, done)
	assert.Equal(t, []int64{batch, 2 * batch}, progress)
}

func TestOfManyProcessesOneTidies(t *testing.T) {
	s, pool := open(t)
	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	pgtest.Exec(t, tx, `SELECT pg_advisory_xact_lock($1)`, int64(0x726c_7469_6479))
	if done, err := tidy(t.Context(), s, rows.Retention{}); err != nil || done.Leader {
		t.Errorf("beside another it tidied %+v (%v)", done, err)
	}
	require.NoError(t, tx.Rollback(t.Context()))
	if done, err := tidy(t.Context(), s, rows.Retention{}); err != nil || !done.Leader {
		t.Errorf("alone it tidied %+v (%v)", done, err)
	}
}
