package rows_test

import (
	"context"
	"encoding/json"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

// flush is an action.
var flush = rows.Action{Operation: "flush", Key: "daily", Tenant: "acme", Details: json.RawMessage(`{"buckets": 3}`)}

// done does an action.
func done(context.Context) error { return nil }

// reply is the answer of an action.
type reply struct{ Text string }

// flushOnce does flush under the key k. It returns the text of the answer, and whether it was a replay.
func flushOnce(
	ctx context.Context, s *rows.DB, text string, do func(context.Context) error,
) (string, bool, error) {
	c, answer := once("k", "a request"), reply{text}
	err := s.Do(ctx, c, flush, &answer, do)
	return answer.Text, c.Idempotency.Replayed, err
}

func TestActionIsAuditedAndMakesNoVersion(t *testing.T) {
	s, _ := open(t)
	put(t, s, daily())
	if err := s.Do(t.Context(), ann, flush, nil, func(context.Context) error {
		_, entries := versions(t, s)
		assert.EqualValues(t, 2, entries, "there are entries when it is done")
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	require.NoError(t, s.Do(t.Context(), ann, rows.Action{Operation: "flush"}, nil, done))
	entries, err := s.Audit(t.Context(), rows.AuditFilter{Kind: "action", Tenant: "acme"})
	if err != nil || len(entries) != 1 {
		t.Fatalf("the audit has %v (%v), want one action for acme", entries, err)
	}
	e := entries[0]
	if e.Operation != "flush" || e.Key != "daily" || e.Actor != "ann" || e.Login != "postgres" || e.Reason != ann.Reason ||
		e.Version != 1 || string(e.After) != string(flush.Details) || e.Before != nil {
		t.Errorf("the audit has %+v", e)
	}
}

func TestAnActionThatCannotBeRecordedIsNotDone(t *testing.T) {
	s, pool := open(t)
	never := func(context.Context) error { t.Error("the action is done"); return nil }
	wantInvalid(t, "an action without reason", s.Do(t.Context(), rows.Change{Actor: "ann"}, flush, nil, never),
		"reason")
	pool.Close()
	for _, c := range []rows.Change{ann, once("k", "a request")} {
		assert.Error(t, s.Do(t.Context(), c, flush, nil, never), "there is no error without a database")
	}
}

func TestAReplayKeepsNothingOfTheGivenAnswer(t *testing.T) {
	s, _ := open(t)
	type item struct {
		A int `json:",omitempty"`
		B int `json:",omitempty"`
	}
	first, second := []item{{A: 1}}, []item{{B: 2}}
	for _, answer := range []*[]item{&first, &second} {
		require.NoError(t, s.Do(t.Context(), once("k", "a request"), flush, answer, done))
	}
	if !slices.Equal(first, second) || first[0] != (item{A: 1}) {
		t.Errorf("the first answer is %v, and the second %v", first, second)
	}
}

func TestOfManyActionsAtOnceUnderOneKeyOneIsDoneInAllProcesses(t *testing.T) {
	const senders = 6
	dsn := pgtest.Shared(t).Database(t)
	stores := []*rows.DB{rows.New(pgtest.Pool(t, dsn)), rows.New(pgtest.Pool(t, dsn))}
	times := 0 // written by one goroutine at a time, as the race detector checks
	answers := make([]string, senders)
	var all errgroup.Group
	for i := range senders {
		all.Go(func() (err error) {
			answers[i], _, err = flushOnce(t.Context(), stores[i%2], string(rune('a'+i)), func(context.Context) error {
				times++
				return nil
			})
			return err
		})
	}
	require.NoError(t, all.Wait())
	for i, text := range answers {
		assert.EqualValues(t, answers[0], text, "the answer to sender %d, to sender 0", i)
	}
	if _, entries := versions(t, stores[0]); times != 1 || entries != 1 {
		t.Errorf("it was done %d times and recorded %d times, want once", times, entries)
	}
}

func TestAnActionThatTookAllItsTimeMayBeSentAgainAtOnce(t *testing.T) {
	s, pool := open(t)
	_, _, err := flushOnce(t.Context(), s, "", func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
	require.ErrorIs(t, err, context.DeadlineExceeded)
	// A key that is not free now would not become so by itself before the deadline.
	pgtest.Exec(t, pool, `UPDATE rate_limiter.answers SET at = at + interval '1 hour'`)
	soon, cancel := context.WithTimeout(t.Context(), await.Longest)
	defer cancel()
	_, _, err = flushOnce(soon, s, "", done)
	require.NoError(t, err)
}

func TestTheKeyOfAProcessThatDiedDuringAnActionIsFreeSoon(t *testing.T) {
	s, pool := open(t)
	_, _, err := flushOnce(t.Context(), s, "", func(context.Context) error {
		pgtest.Exec(t, pool, `UPDATE rate_limiter.answers SET at = at - interval '15 s'`)
		_, replayed, err := flushOnce(t.Context(), s, "", done)
		assert.False(t, replayed, "the same sent again")
		return err
	})
	require.NoError(t, err)
	_, entries := versions(t, s)
	assert.EqualValues(t, 2, entries, "audit entries")
}
