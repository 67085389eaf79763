package pgstore_test

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/pgstore"
)

func report(t *testing.T, s *pgstore.Store, node string, version int64, age time.Duration) {
	t.Helper()
	if err := s.Report(t.Context(), pgstore.Report{Node: node, Version: version, Age: age, Source: "postgres"}); err != nil {
		t.Fatal(err)
	}
}

func TestFleetTellsWhoEnforcesWhat(t *testing.T) {
	s, _ := open(t)
	_, version := put(t, s, daily())
	report(t, s, "a", version, 0)
	report(t, s, "b", version-1, time.Hour)
	fleet, err := s.Fleet(t.Context(), time.Minute)
	if err != nil || fleet.Version != version || fleet.At.IsZero() || len(fleet.Nodes) != 2 {
		t.Fatalf("the fleet is %+v (%v), want two nodes and version %d", fleet, err, version)
	}
	if behind := fleet.Behind(version); len(behind) != 1 || behind[0].Node != "b" || !behind[0].Live {
		t.Errorf("behind are %v, want b", behind)
	}
	if spread, all := fleet.Spread(); all {
		t.Errorf("the change is said to be everywhere after %v", spread)
	}
	report(t, s, "b", version, 0)
	if fleet, err = s.Fleet(t.Context(), time.Minute); err != nil {
		t.Fatal(err)
	}
	if spread, all := fleet.Spread(); !all || spread <= 0 || spread > time.Minute {
		t.Errorf("the change took %v to reach all (%v)", spread, all)
	}
}

func TestNodeKeepsTheInstantSinceWhenItEnforcesAVersion(t *testing.T) {
	s, _ := open(t)
	report(t, s, "a", 1, time.Minute)
	first, err := s.Fleet(t.Context(), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	report(t, s, "a", 1, 0)
	second, err := s.Fleet(t.Context(), time.Minute)
	if err != nil || !second.Nodes[0].EnforcedAt.Equal(first.Nodes[0].EnforcedAt) || !second.Nodes[0].ReportedAt.After(first.Nodes[0].ReportedAt) {
		t.Errorf("first %+v, then %+v (%v), want a later report of the same version", first.Nodes[0], second.Nodes[0], err)
	}
}

func TestSilentNodeIsNotWaitedFor(t *testing.T) {
	s, pool := open(t)
	_, version := put(t, s, daily())
	report(t, s, "gone", 0, 0)
	if _, err := pool.Exec(t.Context(), `UPDATE rate_limiter.nodes SET reported_at = reported_at - interval '1 hour'`); err != nil {
		t.Fatal(err)
	}
	if behind, err := s.Await(t.Context(), version, time.Minute); err != nil || behind != nil {
		t.Errorf("waiting ends with %v (%v), want nobody", behind, err)
	}
}

func TestAwaitReturnsWithTheLastNode(t *testing.T) {
	s, _ := open(t)
	_, version := put(t, s, daily())
	report(t, s, "slow", version-1, 0)
	ended := make(chan error)
	go func() {
		_, err := s.Await(t.Context(), version, time.Minute)
		ended <- err
	}()
	report(t, s, "slow", version, 0)
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestAwaitNamesTheNodesThatDoNotFollow(t *testing.T) {
	s, _ := open(t)
	_, version := put(t, s, daily())
	report(t, s, "slow", version-1, 0)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	behind, err := s.Await(ctx, version, time.Minute)
	if !errors.Is(err, context.DeadlineExceeded) || len(behind) != 1 || behind[0].Node != "slow" {
		t.Errorf("waiting ends with %v (%v), want slow named", behind, err)
	}
}

// queries counts the queries of a pool.
type queries struct{ made atomic.Int64 }

func (q *queries) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	q.made.Add(1)
	return ctx
}

func (q *queries) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func TestManyWhoAwaitTheNodesShareTheirLooks(t *testing.T) {
	var looks queries
	s := wired(t, pgtest.Shared(t).Database(t), func(c *pgxpool.Config) { c.ConnConfig.Tracer = &looks })
	report(t, s, "slow", 0, 0)
	const who, seconds = 200, 0.5
	ctx, cancel := context.WithTimeout(t.Context(), time.Duration(seconds*float64(time.Second)))
	defer cancel()
	var all sync.WaitGroup
	for range who {
		all.Go(func() {
			if behind, err := s.Await(ctx, 1, time.Minute); !errors.Is(err, context.DeadlineExceeded) || len(behind) != 1 {
				t.Errorf("waiting ends with %v (%v), want slow named", behind, err)
			}
		})
	}
	all.Wait()
	// Two queries a look, and a look every 25 ms at most.
	if n := looks.made.Load(); n > 2*seconds*40+10 {
		t.Errorf("%d who wait have made %d queries in %v s", who, n, seconds)
	}
}

func TestNodeReportsItsFaultsAndLeaves(t *testing.T) {
	s, _ := open(t)
	faults := json.RawMessage(`[{"row": 7}]`)
	if err := s.Report(t.Context(), pgstore.Report{Node: "a", Version: 1, Source: "disk", Faults: faults}); err != nil {
		t.Fatal(err)
	}
	fleet, err := s.Fleet(t.Context(), time.Minute)
	if err != nil || len(fleet.Nodes) != 1 || string(fleet.Nodes[0].Faults) != string(faults) || fleet.Nodes[0].Source != "disk" {
		t.Errorf("the fleet is %+v (%v), want a node with faults from disk", fleet, err)
	}
	wantInvalid(t, "a source that is none", s.Report(t.Context(), pgstore.Report{Node: "a", Source: "memory"}), "source")
	if err := s.Leave(t.Context(), "a"); err != nil {
		t.Error(err)
	}
	if fleet, err = s.Fleet(t.Context(), time.Minute); err != nil || len(fleet.Nodes) != 0 {
		t.Errorf("after it left the fleet is %+v (%v)", fleet, err)
	}
}
