package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/policysync"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/observe/denial"
)

// recentStore stores recent denials, or answers with an error.
type recentStore struct {
	got []*denial.Recent
	err error
}

// ReportRecent implements recentReporter.
func (r *recentStore) ReportRecent(_ context.Context, _ string, rows any) (int, error) {
	if r.err != nil {
		return 0, r.err
	}
	all := rows.([]*denial.Recent)
	r.got = append(r.got, all...)
	return len(all), nil
}

// recentRowsOf returns a function that returns rows once.
func recentRowsOf(n int) func() []*denial.Recent {
	return func() (rows []*denial.Recent) {
		for i := range n {
			rows = append(rows, &denial.Recent{
				ID: fmt.Sprint("r", i), At: time.Now(), Tenant: "acme\x00", Policy: "daily", Scope: "tenant", Limit: 5,
				WindowSeconds: 60, Reason: "quota", Count: 2, TenantCount: 2,
				Denier: decision.Denier{Tier: "gold\x00"}, RequestIDs: []string{"r1"},
			})
		}
		n = 0
		return rows
	}
}

func TestRecentDenialsAreKeptWhilePostgresIsAwayAndDroppedIfItNeverTakesThem(t *testing.T) {
	to := &recentStore{err: errors.New("away")}
	d := &recentDenials{
		node: "n1", now: time.Now, take: recentRowsOf(250), sink: to, log: slog.New(slog.DiscardHandler),
	}
	d.report(t.Context(), false)
	if n := d.metrics(); n.Queued != 250 || !n.Failing || n.Written != 0 {
		t.Errorf("while Postgres is away: %+v", n)
	}
	to.err = nil
	d.report(t.Context(), false)
	if n := d.metrics(); n.Queued != 0 || n.Failing || n.Written != 250 || len(to.got) != 250 || to.got[249].ID != "r249" {
		t.Errorf("after it: %+v, %d rows", n, len(to.got))
	}
	for _, code := range []string{"22023", "53400"} {
		to.err, d.take = &pgconn.PgError{Code: code}, recentRowsOf(3)
		d.report(t.Context(), false)
	}
	if n := d.metrics(); n.Dropped[denial.Rejected] != 12 || n.Queued != 0 || n.Dropped[denial.Shutdown] != 0 {
		t.Errorf("what Postgres never takes: %+v", n)
	}
	to.err, d.take = errors.New("away"), recentRowsOf(3)
	ended, end := context.WithCancel(t.Context())
	end()
	d.run(ended)
	if n := d.metrics(); n.Dropped[denial.Shutdown] != 6 || n.Queued != 0 {
		t.Errorf("at the end: %+v", n)
	}
}

func TestRecentDenialsAreReportedWithTheGrantsOfTheReadme(t *testing.T) {
	s := pgtest.Granted(t)
	store := rows.New(pgtest.Pool(t, s.RoleDSN(pgtest.ServerRole)))
	for i, role := range []string{pgtest.Node, pgtest.ServerRole} {
		sink := policysync.NewDenialSink(policysync.Source{DSN: s.RoleDSN(role)})
		t.Cleanup(sink.Close)
		d := &recentDenials{
			node: role, now: time.Now, take: recentRowsOf(250), sink: sink, log: slog.New(slog.DiscardHandler),
		}
		d.report(t.Context(), false)
		list, err := store.DenialsOf(t.Context(), rows.DenialFilter{RequestID: "r1"})
		if err != nil || len(list) != 250*(i+1) || list[0].Tenant != "acme\ufffd" || *list[0].Limit != 5 ||
			list[0].RetryAfter != nil || list[0].Tier != "gold\ufffd" {
			t.Errorf("after reports of the role %s %d denials are stored (%v)", role, len(list), err)
		}
	}
}
