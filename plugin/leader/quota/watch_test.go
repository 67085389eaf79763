package quota_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/policytest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/store"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/calendar"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

func TestEachThresholdOfAWindowIsNoticedOnce(t *testing.T) {
	w := newWorld(t, daily(100))
	w.spend("acme", "a", 49, 0)
	w.want("49 %", "")
	w.spend("acme", "a", 1, 0)
	w.want("50 %", "acme daily 50% of 100: 50")
	w.spend("acme", "a", 29, 0)
	w.want("79 %", "")
	w.spend("acme", "a", 1, 0)
	w.want("80 %", "acme daily 80% of 100: 80")
	w.spend("acme", "a", 20, 0)
	w.want("100 %", "acme daily 100% of 100: 100")
	w.spend("acme", "a", 1, 0)
	w.want("a denial", "")
	w.clock = w.clock.AddDate(0, 0, 1)
	w.spend("acme", "a", 55, 0)
	w.want("the next window", "acme daily 50% of 100: 55")
	if n := w.event(); !n.WindowStart.Equal(noon.AddDate(0, 0, 1).Truncate(24*time.Hour)) ||
		n.WindowEnd.Sub(n.WindowStart) != 24*time.Hour {
		t.Errorf("the window is from %v to %v", n.WindowStart, n.WindowEnd)
	}
}

// Noon is 22 November: the month of Berlin began at 23:00 of 31 October in UTC.
func TestEachThresholdOfAPeriodIsNoticedOnceAndForecastsItsEnd(t *testing.T) {
	w := newWorld(t, daily(100))
	w.inPeriods(calendar.Month, calendar.Anchor{}, "Europe/Berlin")
	w.spend("acme", "a", 50, 30*time.Minute)
	w.want("50 %", "acme daily 50% of 100: 50")
	end := time.Date(2026, 11, 30, 23, 0, 0, 0, time.UTC)
	n := w.event()
	if !n.WindowStart.Equal(time.Date(2026, 10, 31, 23, 0, 0, 0, time.UTC)) || !n.WindowEnd.Equal(end) ||
		n.Period != "month" || n.TimeZone != "Europe/Berlin" || n.ExhaustedAt == nil || n.ExhaustedAt.After(end) {
		t.Errorf("the notice is %+v", n)
	}
	w.clock = end.Add(-24 * time.Hour) // 50 more at the rate of a day last until the end
	w.spend("acme", "a", 30, 0)
	w.want("80 %", "acme daily 80% of 100: 80")
	assert.True(t, w.event().ExhaustedAt.Before(end))
	w.clock = end.Add(-time.Hour)
	w.spend("acme", "a", 9, 0)
	w.want("in the last hour", "")
	w.clock = end
	w.spend("acme", "a", 60, 0)
	w.want("the next month", "acme daily 50% of 100: 60")
	assert.Equal(t, end, w.event().WindowStart)
}

func TestARushIsOneNoticeOfTheHighestThreshold(t *testing.T) {
	w := newWorld(t, daily(100, func(l *schema.Limit) { l.Unit = schema.UnitUSD }))
	w.spend("acme", "a", 100, 0)
	w.spend("globex", "a", 85, 0)
	w.want("a rush", "acme daily 100% of 100: 100, globex daily 80% of 100: 85")
	assert.Equal(t, schema.UnitUSD, w.events[0].Unit)
}

func TestWhatIsLeftIsTooLittleForARequest(t *testing.T) {
	w := newWorld(t, daily(100, func(l *schema.Limit) { l.Cost = new(int64(7)) }))
	w.spend("acme", "a", 1, 0)
	w.want("7 %", "")
	for range 13 {
		w.spend("acme", "a", 1, 0)
	}
	w.want("98 %", "acme daily 100% of 100: 98")
}

func TestAChangedLimitRepeatsNoNotice(t *testing.T) {
	w := newWorld(t, daily(100))
	w.spend("acme", "a", 80, 0)
	w.want("80 %", "acme daily 80% of 100: 80")
	w.enforce(policy.Rows{}, daily(200))
	w.spend("acme", "a", 20, 0)
	w.want("50 % of a raised limit", "")
	w.spend("acme", "a", 60, 0)
	w.want("80 % of a raised limit", "")
	w.enforce(policy.Rows{}, daily(150))
	w.spend("acme", "a", 1, 0)
	w.want("a cut below what is used", "acme daily 100% of 150: 160")
}

func TestAQuotaOfADayHasNoticesAlsoAfterThoseOfItsFirstHour(t *testing.T) {
	w := newWorld(t, daily(100, func(l *schema.Limit) { l.WindowSize = 3600 }))
	w.clock = w.clock.Truncate(24 * time.Hour) // an hour and a day begin
	w.spend("acme", "a", 80, 0)
	w.want("80 % of an hour", "acme daily 80% of 100: 80")
	hourly := w.event()
	w.enforce(policy.Rows{}, daily(400))
	w.spend("acme", "a", 120, 0)
	w.want("50 % of a day", "acme daily 50% of 400: 200")
	if n := w.event(); n.ID() == hourly.ID() || !n.WindowStart.Equal(hourly.WindowStart) {
		t.Errorf("the events are %+v and %+v", hourly, n)
	}
	w.spend("acme", "a", 120, 0)
	w.want("80 % of a day", "acme daily 80% of 400: 320")
}

// What is returned and used again is no news.
func TestReturnedTokensRepeatNoNotice(t *testing.T) {
	w := newWorld(t, daily(100))
	w.spend("acme", "a", 80, 0)
	w.want("80 %", "acme daily 80% of 100: 80")
	_, err := w.buckets.(store.Keeper).Forget(t.Context(), w.bounds("acme", "a", 0).Bounds)
	require.NoError(t, err)
	w.spend("acme", "a", 50, 0)
	w.want("50 % after a reset", "")
	w.spend("acme", "a", 35, 0)
	w.want("85 % after a reset", "")
}

func TestOnlyQuotasThatDenyTenantsHaveNotices(t *testing.T) {
	w := newWorld(
		t, daily(100),
		schema.Limit{Name: "short", Scope: "tenant", Limit: 100, WindowSize: 3599, Algorithm: "fixed_window"},
		schema.Limit{Name: "hourly", Scope: "tenant", Limit: 100, WindowSize: 3600, Algorithm: "sliding_window"},
		schema.Limit{Name: "bucket", Scope: "tenant", Limit: 100, WindowSize: 3600},
		schema.Limit{Name: "pace", Scope: "tenant", Limit: 1000, WindowSize: 3600, Burst: 100},
		schema.Limit{Name: "per-user", Scope: "user", Limit: 100, WindowSize: 3600, Algorithm: "fixed_window"},
		schema.Limit{Name: "shadow", Scope: "tenant", Limit: 100, WindowSize: 3600, Mode: "shadow"},
		schema.Limit{Name: "each", Scope: "tenant+endpoint", Limit: 100, WindowSize: 3600},
		schema.Limit{Name: "some", Scope: "tenant", Limit: 100, WindowSize: 3600, Endpoint: "POST /a/{id}"},
	)
	w.spend("acme", "route", 60, 0)
	w.want("a route", "acme bucket 50% of 100: 60, acme daily 50% of 100: 60, acme each at route 50% of 100: 60, "+
		"acme hourly 50% of 100: 60")
	w.spend("globex", "POST /a/1", 90, 0)
	w.want("an endpoint", "globex bucket 80% of 100: 90, globex daily 80% of 100: 90, globex each at b 80% of 100: 90, "+
		"globex hourly 80% of 100: 90, globex some at POST /a/{id} 80% of 100: 90")
}

func TestOverridesAreTakenIntoAccount(t *testing.T) {
	w := newWorld(t, daily(100))
	for _, tenant := range []string{"acme", "banned", "exempt", "penalized", "=cmd,\"b\"\n"} {
		w.spend(tenant, "a", 40, 0)
	}
	w.enforce(policy.Rows{Version: 2, Overrides: []policy.Override{
		policytest.Override(1, schema.Override{Kind: schema.KindBan, Tenant: "banned"}),
		policytest.Override(2, schema.Override{Kind: schema.KindExempt, Tenant: "exempt"}),
		policytest.Override(3, schema.Override{Kind: schema.KindCustomLimit, Tenant: "acme", Policy: "daily", Limit: 50}),
		policytest.Override(4, schema.Override{
			Kind: schema.KindMultiplier, Tenant: "penalized", Factor: 500, Source: schema.SourceDetector,
		}),
		policytest.Override(5, schema.Override{
			Kind: schema.KindCustomLimit, Tenant: "=cmd,\"b\"\n", Policy: "daily", Limit: 40,
		}),
	}}, daily(100))
	w.want("with overrides", "=cmd,\"b\"\n daily 100% of 40: 40, acme daily 80% of 50: 40, penalized daily 80% of 50: 40")
}

// Another leader has unpacked the usage, and did not look at it before it ended.
func TestWhatALeaderLeftIsNoticedByTheNext(t *testing.T) {
	w := newWorld(t, daily(100))
	w.spend("acme", "a", 1, 0)
	w.want("before", "")
	w.spend("acme", "a", 79, time.Hour)
	w.exec(`UPDATE rate_limiter.usage_state SET checked_at = checked_at - interval '1 hour'`)
	if got, err := w.lead(false); got != "" || err != nil {
		t.Fatalf("a leader that does not look: %q (%v)", got, err)
	}
	w.want("an hour later", "acme daily 80% of 100: 80")
	assert.True(t, w.event().Late, "the notice does not say that it is late")
	w.spend("acme", "a", 20, 0)
	w.want("in time", "acme daily 100% of 100: 100")
	assert.False(t, w.event().Late, "the notice says that it is late")
}

func TestUsageThatANodeReportsLateIsNoticedAsLate(t *testing.T) {
	w := newWorld(t, daily(100))
	w.want("before", "")
	w.spend("acme", "a", 80, 20*time.Hour)
	w.spend("globex", "a", 80, 0)
	w.want("80 %", "acme daily 80% of 100: 80, globex daily 80% of 100: 80")
	if len(w.events) != 2 || !w.events[0].Late || w.events[1].Late {
		t.Errorf("the events are %+v, want that of acme to be late", w.events)
	}
}

func TestBucketsThatCannotBeReadAreLookedAtAgain(t *testing.T) {
	w := newWorld(t, daily(100))
	w.spend("acme", "a", 80, 0)
	w.spend("globex", "a", 80, 0)
	w.unavailable = "acme"
	w.want("without the buckets of acme", "globex daily 80% of 100: 80")
	w.want("once more", "")
	if n := strings.Count(w.log.String(), "cannot be read"); n != 1 {
		t.Errorf("%d lines report it, want one: %s", n, w.log.String())
	}
	w.unavailable = ""
	w.want("with them", "acme daily 80% of 100: 80")
	if n := strings.Count(w.log.String(), "can be read again"); n != 1 {
		t.Errorf("%d lines report the end of it, want one: %s", n, w.log.String())
	}
}

func TestANoticeIsNotWrittenWithoutItsEvent(t *testing.T) {
	w := newWorld(t, daily(100))
	w.spend("acme", "a", 80, 0)
	w.fault = errUnavailable
	if got, err := w.lead(true); got != "" || err == nil {
		t.Errorf("without events the notices are %q (%v), want none and the error", got, err)
	}
	w.fault = nil
	w.want("with events", "acme daily 80% of 100: 80")
}

func TestNothingIsLookedAtUntilTheLimitsAreLoaded(t *testing.T) {
	w := newWorld(t, daily(100))
	w.spend("acme", "a", 80, 0)
	plan := w.plan
	w.plan = nil
	w.want("without limits", "")
	w.plan = plan
	w.want("with limits", "acme daily 80% of 100: 80")
}

func TestNoticesAreDroppedLongAfterTheirWindow(t *testing.T) {
	w := newWorld(t, daily(100))
	w.spend("acme", "a", 80, 0)
	w.want("80 %", "acme daily 80% of 100: 80")
	w.exec(`UPDATE rate_limiter.quota_notices SET window_end = now() - interval '61 days'`)
	w.want("later", "")
	var left int
	err := w.pool.QueryRow(t.Context(), `SELECT count(*) FROM rate_limiter.quota_notices`).Scan(&left)
	if err != nil || left != 0 {
		t.Errorf("%d notices are left (%v)", left, err)
	}
}

// killer closes its connection before one of the statements, counted from 1.
type killer struct{ left int }

// TraceQueryStart implements pgx.QueryTracer.
func (k *killer) TraceQueryStart(ctx context.Context, conn *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	if k.left--; k.left == 0 {
		_ = conn.PgConn().Conn().Close()
	}
	return ctx
}

// TraceQueryEnd implements pgx.QueryTracer.
func (*killer) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func TestACheckThatIsKilledAtAnyStatementLosesAndRepeatsNoNotice(t *testing.T) {
	w := newWorld(t, daily(100))
	w.spend("acme", "a", 80, 0)
	_, err := w.lead(false)
	require.NoError(t, err)
	config, err := pgx.ParseConfig(w.dsn)
	require.NoError(t, err)
	kills := 0
	for ended := false; !ended; kills++ {
		config.Tracer = &killer{left: kills + 1}
		session, err := pgx.ConnectConfig(t.Context(), config)
		require.NoError(t, err)
		ended = w.watcher.Check(t.Context(), session) == nil
		_ = session.Close(t.Context()) // it may be closed already
	}
	var notices int
	err = w.pool.QueryRow(t.Context(), `SELECT count(*) FROM rate_limiter.quota_notices WHERE threshold = 80`).Scan(&notices)
	if err != nil || notices != 1 || kills < 7 {
		t.Errorf("%d notices after %d kills (%v), want one", notices, kills-1, err)
	}
}
