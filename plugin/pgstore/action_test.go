package pgstore_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/pgstore"
)

// flush is an action.
var flush = pgstore.Action{Operation: "flush", Key: "daily", Tenant: "acme", Details: json.RawMessage(`{"buckets": 3}`)}

// done does an action.
func done(context.Context) error { return nil }

// told is what the caller of an action is told.
type told struct{ Text string }

// flushed does flush under the key k, and tells what its caller is told; do is not run in a replay.
func flushed(ctx context.Context, s *pgstore.Store, text string, do func(context.Context) error) (string, bool, error) {
	c, answer := once("k", "a request"), told{text}
	err := s.Do(ctx, c, flush, &answer, do)
	return answer.Text, c.Idempotency.Replayed, err
}

func TestActionIsAuditedAndMakesNoVersion(t *testing.T) {
	t.Parallel()
	s, _ := open(t)
	put(t, s, daily())
	if err := s.Do(t.Context(), ann, flush, nil, func(context.Context) error {
		if _, entries := versions(t, s); entries != 2 {
			t.Errorf("there are %d entries when it is done, want its own beside the policy's", entries)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := s.Do(t.Context(), ann, pgstore.Action{Operation: "flush"}, nil, done); err != nil {
		t.Fatal(err)
	}
	entries, _, err := s.Audit(t.Context(), pgstore.AuditFilter{Kind: "action", Tenant: "acme"})
	if err != nil || len(entries) != 1 {
		t.Fatalf("the audit has %v (%v), want one action for acme", entries, err)
	}
	e := entries[0]
	if e.Operation != "flush" || e.Key != "daily" || e.Actor != "ann" || e.Login != "postgres" || e.Reason != ann.Reason ||
		e.Version != 1 || string(e.After) != string(flush.Details) || e.Before != nil {
		t.Errorf("the action is told as %+v", e)
	}
}

func TestAnActionThatCannotBeToldIsNotDone(t *testing.T) {
	t.Parallel()
	s, pool := open(t)
	never := func(context.Context) error { t.Error("it is done"); return nil }
	wantInvalid(t, "an action without reason", s.Do(t.Context(), pgstore.Change{Actor: "ann"}, flush, nil, never), "reason")
	wantInvalid(t, "an action that is none", s.Do(t.Context(), ann, pgstore.Action{Key: "daily"}, nil, never), "operation")
	pool.Close()
	for _, c := range []pgstore.Change{ann, once("k", "a request")} {
		if err := s.Do(t.Context(), c, flush, nil, never); err == nil {
			t.Error("there is no error without a database")
		}
	}
}

func TestActionIsDoneAgainUntilItHasBeenDone(t *testing.T) {
	t.Parallel()
	s, _ := open(t)
	trouble := errors.New("trouble")
	for i, test := range []struct {
		err      error
		told     string
		replayed bool
	}{{trouble, "time 0", false}, {nil, "time 1", false}, {nil, "time 1", true}} {
		text, replayed, err := flushed(t.Context(), s, []string{"time 0", "time 1", "time 2"}[i], func(context.Context) error { return test.err })
		if !errors.Is(err, test.err) || replayed != test.replayed || text != test.told {
			t.Errorf("time %d: told %q, replayed %v (%v)", i, text, replayed, err)
		}
	}
	if err := s.Do(t.Context(), once("k", "another"), flush, new(told), done); !errors.As(err, new(*pgstore.KeyReusedError)) {
		t.Errorf("another action under the key: %v", err)
	}
	if _, entries := versions(t, s); entries != 2 {
		t.Errorf("%d audit entries, want those of the two that were not replays", entries)
	}
}

func TestNothingOfAReplayIsFromNow(t *testing.T) {
	t.Parallel()
	s, _ := open(t)
	type item struct {
		A int `json:",omitempty"`
		B int `json:",omitempty"`
	}
	first, second := []item{{A: 1}}, []item{{B: 2}}
	for _, answer := range []*[]item{&first, &second} {
		if err := s.Do(t.Context(), once("k", "a request"), flush, answer, done); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(first, second) || first[0] != (item{A: 1}) {
		t.Errorf("the first is told %v, and the second %v", first, second)
	}
}

func TestOfManyAtOnceUnderOneKeyOneIsDoneInAllProcesses(t *testing.T) {
	t.Parallel()
	const senders = 6
	dsn := pgtest.Shared(t).Database(t)
	stores := []*pgstore.Store{pgstore.New(pgtest.Pool(t, dsn)), pgstore.New(pgtest.Pool(t, dsn))}
	times := 0 // is written by one at a time, or the race detector says so
	answers := make([]string, senders)
	var all errgroup.Group
	for i := range senders {
		all.Go(func() (err error) {
			answers[i], _, err = flushed(t.Context(), stores[i%2], string(rune('a'+i)), func(context.Context) error {
				times++
				return nil
			})
			return err
		})
	}
	if err := all.Wait(); err != nil {
		t.Fatal(err)
	}
	for i, text := range answers {
		if text != answers[0] {
			t.Errorf("sender %d is told %q, sender 0 %q", i, text, answers[0])
		}
	}
	if _, entries := versions(t, stores[0]); times != 1 || entries != 1 {
		t.Errorf("it was done %d times and is told %d times, want once", times, entries)
	}
}

func TestWhoWaitsInVainForTheFirstIsToldSo(t *testing.T) {
	t.Parallel()
	s, _ := open(t)
	if _, _, err := flushed(t.Context(), s, "", func(context.Context) error {
		hasty, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		_, _, err := flushed(hasty, s, "", done)
		if underway := new(pgstore.UnderwayError); !errors.As(err, &underway) || underway.Key != "k" || hasty.Err() != nil {
			t.Errorf("%v (%v), want to know in time that the first is under way", err, hasty.Err())
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if _, entries := versions(t, s); entries != 1 {
		t.Errorf("%d audit entries, want the first one's", entries)
	}
}

func TestActionsUnderTwoKeysDoNotWaitForEachOther(t *testing.T) {
	t.Parallel()
	s := wired(t, pgtest.Shared(t).Database(t), func(c *pgxpool.Config) { c.MaxConns = 8 })
	if _, _, err := flushed(t.Context(), s, "", func(ctx context.Context) error {
		return s.Do(ctx, once("another", "a request"), flush, new(told), done)
	}); err != nil {
		t.Error(err)
	}
}

func TestTheKeyOfAProcessThatDiesInAnActionIsFree(t *testing.T) {
	t.Parallel()
	dsn := pgtest.Shared(t).Database(t)
	pool := pgtest.Pool(t, dsn)
	dying := wired(t, dsn, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["application_name"] = "dying" })
	_, _, err := flushed(t.Context(), dying, "", func(context.Context) error {
		if _, err := pool.Exec(t.Context(), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
			WHERE application_name = 'dying' AND datname = current_database()`); err != nil {
			t.Error(err)
		}
		if _, replayed, err := flushed(t.Context(), pgstore.New(pool), "", done); err != nil || replayed {
			t.Errorf("the same sent again: %v, replayed %v", err, replayed)
		}
		return errors.New("it has died")
	})
	if err == nil {
		t.Error("the action that died was done")
	}
	if _, entries := versions(t, pgstore.New(pool)); entries != 2 {
		t.Errorf("%d audit entries, want one for each try", entries)
	}
}

func TestActionsThatAreDoneLeaveConnectionsToWritersAndReaders(t *testing.T) {
	t.Parallel()
	s := wired(t, pgtest.Shared(t).Database(t), func(c *pgxpool.Config) { c.MaxConns = 4 })
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	inside, leave := make(chan struct{}, 8), make(chan struct{})
	var all errgroup.Group
	for i := range 8 {
		all.Go(func() error {
			return s.Do(ctx, once(string(rune('a'+i)), "a request"), flush, new(told), func(context.Context) error {
				inside <- struct{}{}
				<-leave
				return nil
			})
		})
	}
	<-inside
	if _, _, err := s.PutPolicy(ctx, ann, daily()); err != nil {
		t.Errorf("%v, want a write while actions are done", err)
	}
	if _, err := s.Policies(ctx, pgstore.PolicyFilter{}); err != nil {
		t.Errorf("%v, want a read while actions are done", err)
	}
	close(leave)
	if err := all.Wait(); err != nil {
		t.Error(err)
	}
}

func TestAnActionWhoseKeyCannotBeKeptSaysSo(t *testing.T) {
	t.Parallel()
	s, pool := open(t)
	_, _, err := flushed(t.Context(), s, "", func(context.Context) error {
		_, err := pool.Exec(t.Context(), `ALTER TABLE rate_limiter.answers RENAME TO gone`)
		return err
	})
	if unkept := new(pgstore.UnkeptKeyError); !errors.As(err, &unkept) {
		t.Errorf("%v, want that it is done and may be done again", err)
	}
}
