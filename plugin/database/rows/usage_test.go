package rows_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"regexp"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	leaderusage "github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/leader/usage"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/observe/usage"
)

// used has one leader unpack batches of acme, of some ages: each with 3 admitted and 1 denied request of GET /a, for
// which the policy daily charges 30 tokens and leaves 70, and 1 admitted request of GET /b.
func used(t *testing.T, ages ...time.Duration) *rows.DB {
	t.Helper()
	dsn := pgtest.Shared(t).Database(t)
	pool := pgtest.Pool(t, dsn)
	for i, age := range ages {
		b := usage.Batch{Epoch: "0123456789abcdef", Seq: int64(i + 1), Rows: []usage.Row{
			{Key: usage.Key{Tenant: "acme", Endpoint: "GET /a"}, Counts: usage.Counts{Admitted: 3, Denied: 1, Remaining: -1}},
			{
				Key:    usage.Key{Tenant: "acme", Endpoint: "GET /a", Policy: "daily"},
				Counts: usage.Counts{Admitted: 3, Denied: 1, Cost: 30, Remaining: 70},
			},
			{Key: usage.Key{Tenant: "acme", Endpoint: "GET /b"}, Counts: usage.Counts{Admitted: 1, Remaining: -1}},
			{Key: usage.Key{Tenant: "globex", Endpoint: "GET /a"}, Counts: usage.Counts{Admitted: 1000, Remaining: -1}},
		}}
		payload, err := b.MarshalBinary()
		require.NoError(t, err)
		pgtest.Exec(t, pool, `SELECT rate_limiter.report_usage('edge-1', $1, $2, $3, $4)`, b.Epoch, b.Seq, age,
			payload)
	}
	leader := leaderusage.NewLeader(leaderusage.Options{
		Connect: func(ctx context.Context) (*pgx.Conn, error) { return pgx.Connect(ctx, dsn) },
		Lock:    rows.TidyLock, Log: slog.New(slog.DiscardHandler),
	})
	if done, err := leader.Once(t.Context()); err != nil || done.Batches != int64(len(ages)) {
		t.Fatalf("the leader has done %+v (%v)", done, err)
	}
	return rows.New(pool)
}

// usageOf returns a usage history of acme until now, in steps of a name.
func usageOf(t *testing.T, s *rows.DB, step string, change func(*rows.UsageQuery)) []rows.UsageRow {
	t.Helper()
	of, err := rows.UsageStepOf(step)
	require.NoError(t, err)
	now := time.Now()
	q := rows.UsageQuery{Tenant: "acme", From: now.Add(-1000 * of.Span), To: now.Add(time.Minute), Step: of}
	change(&q)
	found, err := s.Usage(t.Context(), q)
	require.NoError(t, err)
	for i, r := range found.Items {
		if !r.At.Equal(r.At.Truncate(of.Span)) || i > 0 && r.At.Before(found.Items[i-1].At) {
			t.Errorf("row %d of step %s is at %v", i, step, r.At)
		}
	}
	return found.Items
}

func TestUsageIsTheSameInEveryStepWhereverItIsSummedUp(t *testing.T) {
	s := used(t, 0, 3*time.Minute, 4*time.Hour, 6*time.Hour)
	for _, step := range rows.UsageSteps {
		list := usageOf(t, s, step.Name, func(*rows.UsageQuery) {})
		var admitted, denied int64
		for _, r := range list {
			admitted, denied = admitted+r.Admitted, denied+r.Denied
			if r.Cost != nil || r.Remaining != nil || r.Policy != nil || r.Endpoint != nil {
				t.Errorf("a row of requests is %+v, want only their numbers", r)
			}
		}
		if admitted != 16 || denied != 4 {
			t.Errorf("step %s has %d admitted and %d denied, want 16 and 4", step.Name, admitted, denied)
		}
	}
}

func TestUsageIsFilteredAndGroupedByEndpointAndPolicy(t *testing.T) {
	s := used(t, 0)
	a := "GET /a"
	for want, change := range map[string]func(*rows.UsageQuery){
		`[{"admitted":3,"soft":0,"denied":1,"shadow_denied":0,"late":0}]`: func(q *rows.UsageQuery) { q.Endpoint = &a },
		`[{"policy":"daily","admitted":3,"soft":0,"denied":1,"shadow_denied":0,"late":0,"cost":30,"remaining_min":70}]`: func(
			q *rows.UsageQuery,
		) {
			q.Policy = "daily"
		},
		`[]`: func(q *rows.UsageQuery) { q.Tenant = "unknown" },
		`[{"endpoint":"GET /a","admitted":3,"soft":0,"denied":1,"shadow_denied":0,"late":0},` +
			`{"endpoint":"GET /b","admitted":1,"soft":0,"denied":0,"shadow_denied":0,"late":0}]`: func(
			q *rows.UsageQuery,
		) {
			q.ByEndpoint = true
		},
		`[{"policy":"","admitted":4,"soft":0,"denied":1,"shadow_denied":0,"late":0},` +
			`{"policy":"daily","admitted":3,"soft":0,"denied":1,"shadow_denied":0,"late":0,"cost":30,"remaining_min":70}]`: func(
			q *rows.UsageQuery,
		) {
			q.ByPolicy = true
		},
	} {
		list := usageOf(t, s, "1d", change)
		text, err := json.Marshal(list)
		require.NoError(t, err)
		assert.Equal(t, want, at.ReplaceAllString(string(text), ""), "the rows")
	}
}

var at = regexp.MustCompile(`"at":"[^"]*",`)

func TestAUsageHistoryIsBounded(t *testing.T) {
	s := used(t)
	now := time.Now()
	for _, q := range []rows.UsageQuery{
		{From: now, To: now.Add(-time.Hour), Step: rows.UsageSteps[0]},
		{From: now.Add(-30 * time.Hour), To: now, Step: rows.UsageSteps[0]},
	} {
		if _, err := s.Usage(t.Context(), q); !errors.As(err, new(*rows.InvalidError)) {
			t.Errorf("from %v to %v: %v, want an InvalidError", q.From, q.To, err)
		}
	}
}
