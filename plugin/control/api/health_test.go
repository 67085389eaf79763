package api_test

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/memory"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

// probed holds the answer of /readyz.
func (w *world) probed(status int) api.Readiness {
	w.Helper()
	return read[api.Readiness](w, w.want(w.do(call{method: "GET", path: "/readyz"}), status))
}

// probedUntil waits until /readyz is degraded for one reason, which has some words in it, or until it is ok for no
// words.
func (w *world) probedUntil(words string) {
	w.Helper()
	await.That(w, "/readyz says "+words, func() bool {
		got := w.probed(http.StatusOK)
		if words == "" {
			return got.Status == "ok"
		}
		return got.Status == "degraded" && len(got.Missing) == 1 && strings.Contains(got.Missing[0], words)
	})
}

func TestAFrozenRedisIsReportedAsDegraded(t *testing.T) {
	t.Parallel()
	p := planning(t, plan(), enterprise())
	p.probedUntil("")
	p.redis.Hang(t)
	p.probedUntil("Redis does not answer")
	p.redis.Resume(t)
	p.probedUntil("")
	var said []string // about readiness
	for line := range strings.Lines(p.log.String()) {
		if _, text, _ := strings.Cut(line, `"level":`); strings.Contains(text, `"msg":"readiness`) {
			said = append(said, text)
		}
	}
	// A busy machine may need too long for other probes, too.
	if n := len(said); n < 2 || !strings.HasPrefix(said[0], `"WARN"`) || !strings.HasPrefix(said[n-1], `"INFO"`) ||
		len(slices.Compact(said)) != n {
		t.Errorf("want one warning of the outage and then one note of its end:\n%s", p.log)
	}
}

func TestAReadOnlyDatabaseIsDegradedWithAReason(t *testing.T) {
	t.Parallel()
	dsn := pgtest.Shared(t).Database(t)
	owner := pgtest.Pool(t, dsn)
	pgtest.Exec(t, owner, `DO $$ BEGIN EXECUTE format('ALTER DATABASE %I
		SET default_transaction_read_only = on', current_database()); END $$`)
	w := open(t, func(o *api.Options) { o.Rows = rows.New(pgtest.Pool(t, dsn)) })
	w.probedUntil("default_transaction_read_only")
	a := w.want(w.as("POST", policies, daily), http.StatusServiceUnavailable)
	if got := read[problem](w, a); !strings.Contains(got.Detail, "read-only") ||
		!strings.Contains(got.Detail, "nothing was written") {
		t.Errorf("a write is answered %s", a.Body)
	}
}

func TestAThousandProbesQueryTheDatabaseAndRedisOnceASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var pings atomic.Int64
		pool := dialled(t, "postgres://nobody@127.0.0.1:1/none?sslmode=disable", silence)
		defer pool.Close()
		server, err := api.New(api.Options{
			Rows: rows.New(pool), Tokens: ring{}, Log: slog.New(slog.DiscardHandler),
			Ping: func(context.Context) error { pings.Add(1); return nil },
		})
		require.NoError(t, err)
		for second := range int64(20) {
			for range 50 {
				recorder := httptest.NewRecorder()
				server.ServeHTTP(recorder, call{method: "GET", path: "/readyz"}.request())
				if strings.Contains(recorder.Body.String(), "Redis") {
					t.Fatalf("Redis is reported as unavailable while only the database does not answer: %s", recorder.Body)
				}
			}
			synctest.Wait()
			if n := pings.Load(); n != second+1 {
				t.Fatalf("in %d seconds Redis was pinged %d times", second+1, n)
			}
			time.Sleep(1001 * time.Millisecond) // of the bubble's clock
		}
	})
}

func TestAProcessThatDecidesWithoutTheDatabaseStaysReadyAndListsWhatIsMissing(t *testing.T) {
	t.Parallel()
	buckets := shelf{memory.New(memory.Options{Now: clock})}
	w := open(t, func(o *api.Options) { o.Buckets, o.Decider = buckets, deciderOf(t, plan(), buckets, enterprise()) })
	if got := w.probed(http.StatusOK); got.Status != "ok" || len(got.Missing) != 0 {
		t.Errorf("with all there is: %+v", got)
	}
	w.pool.Close()
	w.probedUntil("database")
	w.want(w.as("POST", "/v1/ratelimit/check", `{"org_id":"acme"}`), http.StatusOK)
	w.want(w.do(call{method: "GET", path: "/healthz"}), http.StatusOK)
}

// rowless returns a path without the rows of a database.
func rowless(t *testing.T) *admit.Decider {
	t.Helper()
	decider := &admit.Decider{Now: clock}
	snapshot, err := resolve.ForCallers(plan())
	require.NoError(t, err)
	decider.Policies.Store(snapshot)
	return decider
}

func TestUntilTheRowsAreLoadedNothingIsDecidedOrShownAsInForce(t *testing.T) {
	t.Parallel()
	buckets := shelf{memory.New(memory.Options{Now: clock})}
	decider := rowless(t)
	decider.Buckets = buckets
	w := open(t, func(o *api.Options) { o.Buckets, o.Decider = buckets, decider })
	for _, c := range []call{
		{admin, "POST", "/v1/ratelimit/check", `{"org_id":"acme"}`, nil},
		{admin, "POST", "/v1/ratelimit/check/batch", `{"checks":[{"org_id":"acme"}]}`, nil},
		{admin, "GET", acmePath + "/ratelimit/policies", "", nil},
		{admin, "GET", acmePath + "/ratelimit/usage", "", nil},
		{admin, "POST", acmePath + "/ratelimit/reset", `{"preview":true}`, nil},
	} {
		a := w.want(w.do(c), http.StatusServiceUnavailable)
		if got := read[problem](w, a); !strings.Contains(got.Detail, "warming up") || a.Header().Get("Retry-After") != "1" {
			t.Errorf("%s %s: %s, Retry-After %q; want that it is warming up", c.method, c.path, a.Body,
				a.Header().Get("Retry-After"))
		}
	}
}

func TestAProcessThatCanServeNothingIsNotReady(t *testing.T) {
	t.Parallel()
	for name, decider := range map[string]*admit.Decider{"no config": nil, "no policies": {}, "no rows": rowless(t)} {
		w := open(t, func(o *api.Options) { o.Decider = decider })
		before := http.StatusServiceUnavailable
		if decider == nil {
			before = http.StatusOK // it serves what is in the database
		}
		w.want(w.do(call{method: "GET", path: "/readyz"}), before)
		w.pool.Close()
		await.That(w, name+": it is not ready, for want of the database", func() bool {
			a := w.do(call{method: "GET", path: "/readyz"})
			return a.Code == http.StatusServiceUnavailable && strings.Contains(read[problem](w, a).Detail,
				"the database does not answer")
		})
		w.want(w.do(call{method: "GET", path: "/healthz"}), http.StatusOK)
	}
}

func TestADatabaseThatDeniesTheLoginIsNotCalledSilent(t *testing.T) {
	t.Parallel()
	dsn := pgtest.Denied(t)
	w := open(t, func(o *api.Options) { o.Rows = rows.New(pgtest.Pool(t, dsn)) })
	a := w.want(w.do(call{method: "GET", path: "/readyz"}), http.StatusServiceUnavailable)
	detail := read[problem](w, a).Detail
	pgtest.WantPlain(t, detail, "the database denies the login")
	if strings.Contains(detail, "ann") || strings.Contains(detail, "does not answer") {
		t.Errorf("/readyz without a token returns %q, want no user and no outage", detail)
	}
}
