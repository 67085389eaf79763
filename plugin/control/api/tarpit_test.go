package api_test

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/soak"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/memory"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

// bog is a deciding server in virtual time, without a database.
type bog struct {
	*testing.T
	server  *api.Server
	metrics *prometheus.Registry
}

// faulty is a check whose body is no JSON.
var faulty = call{ofAcme, "POST", check, "{", nil}

// inBog runs a test in virtual time.
func inBog(t *testing.T, test func(*bog)) {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), "postgres://nobody@127.0.0.1:1/none") // it has goroutines of its own
	if err != nil {
		t.Fatal(err)
	}
	pool.Close()
	synctest.Test(t, func(t *testing.T) {
		now := func() limit.Micros { return limit.Micros(time.Now().UnixMicro()) }
		b := &bog{T: t, metrics: prometheus.NewRegistry()}
		b.server, err = api.New(api.Options{
			Store: rows.New(pool), Tokens: ring{}, Log: slog.New(slog.DiscardHandler), Metrics: b.metrics,
			Decider: deciderOf(t, plan(), memory.New(memory.Options{Now: now}), policy.Rows{}),
			Limits:  memory.New(memory.Options{Now: now}), Rates: api.Rates{Requests: 1e6, Failures: 1e6},
		})
		if err != nil {
			t.Fatal(err)
		}
		test(b)
	})
}

// ask returns the answer to a call, and how long it took.
func (b *bog) ask(ctx context.Context, c call) (answer, time.Duration) {
	recorder, begun := httptest.NewRecorder(), time.Now()
	b.server.ServeHTTP(recorder, c.request().WithContext(ctx))
	return answer{recorder, c}, time.Since(begun)
}

// askAtOnce makes so many calls at once, and runs during while some are answered; it returns the answers.
func (b *bog) askAtOnce(ctx context.Context, n int, c call, during func()) []answer {
	answers := make([]answer, n)
	var all sync.WaitGroup
	for i := range answers {
		all.Go(func() { answers[i], _ = b.ask(ctx, c) })
	}
	synctest.Wait()
	during()
	all.Wait()
	return answers
}

// wantAtOnce fails unless a call is answered with a status and without a delay.
func (b *bog) wantAtOnce(c call, status int) {
	b.Helper()
	if a, took := b.ask(b.Context(), c); a.Code != status || took != 0 {
		b.Errorf("%s %s %.40s: %d %s after %s, want %d at once", c.method, c.path, c.body, a.Code, a.Body, took, status)
	}
}

func TestFaultyRequestsKeepAProcessBusyNoMoreThanTenTimesASecond(t *testing.T) {
	t.Parallel()
	right := call{ofAcme, "POST", check, `{"org_id":"acme"}`, nil}
	for name, c := range map[string]call{
		"no JSON":            faulty,
		"too many items":     {ofAcme, "POST", batch, listOf(101, "{}"), nil},
		"unknown names":      {ofAcme, "POST", check, namesOf(65, `"org_id":"acme"`), nil},
		"faults of values":   {ofAcme, "POST", check, `{"org_id":7}`, nil},
		"no content type":    {ofAcme, "POST", check, `{}`, []string{"Content-Type", "text/plain"}},
		"another's org":      {ofAcme, "POST", check, `{"org_id":"globex"}`, nil},
		"another's path":     {ofAcme, "GET", "/v1/orgs/globex/ratelimit/usage", "", nil},
		"an unknown token":   {unknownToken, "POST", check, `{"org_id":"acme"}`, nil},
		"no token":           {"", "POST", check, `{"org_id":"acme"}`, nil},
		"no such path":       {"", "GET", "/nowhere", "", nil},
		"no such method":     {"", "BREW", check, "", nil},
		"a body too long":    {ofAcme, "POST", check, strings.Repeat(" ", 64<<10), nil},
		"a query that isn't": {ofAcme, "POST", check + "?a=1", `{"org_id":"acme"}`, nil},
	} {
		inBog(t, func(b *bog) {
			const connections, lasts, enough = 40, 20 * time.Second, 100 // answers on one connection
			answered, end := make(chan int, connections), time.Now().Add(lasts)
			for range connections {
				go func() {
					n := 0
					for ; time.Now().Before(end) && n < enough; n++ {
						if a, took := b.ask(b.Context(), c); a.Code/100 != 4 || took > 4*time.Second {
							b.Errorf("%s: %d after %s", name, a.Code, took)
						}
					}
					answered <- n
				}()
			}
			for range 10 { // meanwhile a correct request waits for nothing, also of the same token
				time.Sleep(time.Second + time.Millisecond)
				b.wantAtOnce(right, http.StatusOK)
				b.wantAtOnce(call{ofGlobex, "POST", check, "{", nil}, http.StatusBadRequest)
			}
			all := 0
			for range connections {
				all += <-answered
			}
			if most := 10 + 10*int(lasts.Seconds()) + connections; all < 10*int(lasts.Seconds()) || all > most {
				b.Errorf("%s: %d answers in %s, want 10 a second, at most %d", name, all, lasts, most)
			}
		})
	}
}

func TestOccasionalFaultsAndCorrectRequestsAreAnsweredAtOnce(t *testing.T) {
	t.Parallel()
	inBog(t, func(b *bog) {
		for range 10 {
			b.wantAtOnce(faulty, http.StatusBadRequest)
		}
		for range 50 {
			time.Sleep(100 * time.Millisecond)
			b.wantAtOnce(faulty, http.StatusBadRequest)
		}
		for range 100 {
			b.wantAtOnce(call{ofAcme, "POST", check, `{"org_id":"acme"}`, nil}, http.StatusOK)
			b.wantAtOnce(call{"", "GET", "/healthz", "", nil}, http.StatusOK)
		}
		if a, took := b.ask(b.Context(), faulty); a.Code != http.StatusBadRequest || took != 100*time.Millisecond {
			b.Errorf("one fault more is answered by %d after %s, want 400 after 100ms", a.Code, took)
		}
	})
}

func TestOnlyAThousandAnswersAreDelayedAndForMoreTheConnectionIsClosed(t *testing.T) {
	t.Parallel()
	inBog(t, func(b *bog) {
		closed := 0
		for _, a := range b.askAtOnce(b.Context(), 1300, faulty, func() {
			b.wantAtOnce(call{ofAcme, "POST", check, `{"org_id":"acme"}`, nil}, http.StatusOK)
		}) {
			if a.Code != http.StatusBadRequest {
				b.Errorf("answered by %d %s", a.Code, a.Body)
			}
			if a.Header().Get("Connection") == "close" {
				closed++
			}
		}
		if closed != 1300-1000-10 { // ten are not delayed
			b.Errorf("%d connections are closed, want 290", closed)
		}
		for by, want := range map[string]float64{"token": 1000, "closed": 290, "address": 0} {
			if got := counted(b.T, b.metrics, "rate_limiter_control_delayed_total", by); got != want {
				b.Errorf("%v are counted as delayed by %s, want %v", got, by, want)
			}
		}
	})
}

func TestAShutdownOrAClosedConnectionEndsTheDelay(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(b *bog, leave func()){
		"a client that goes": func(_ *bog, leave func()) { leave() },
		"a shutdown": func(b *bog, _ func()) {
			if err := b.server.HTTPServer().Shutdown(b.Context()); err != nil {
				b.Error(err)
			}
		},
	} {
		inBog(t, func(b *bog) {
			begun := time.Now()
			ctx, leave := context.WithCancel(b.Context())
			defer leave()
			b.askAtOnce(ctx, 40, faulty, func() { end(b, leave) })
			if took := time.Since(begun); took != 0 {
				b.Errorf("%s: the last answer came after %s, want it at once", name, took)
			}
		})
	}
}

func TestSoakAnAnswerThatIsDelayedHoldsNoBody(t *testing.T) { // it measures memory: not parallel
	inBog(t, func(b *bog) {
		body := listOf(100, longCheck) + strings.Repeat(" ", 400<<10) + "}"
		delayed := soak.Count(10, 60)
		most := uint64(delayed * len(body) / 5) // bytes
		held := func() uint64 {
			var m runtime.MemStats
			runtime.GC() // the first moves the bodies of pools aside, the second frees them
			runtime.GC()
			runtime.ReadMemStats(&m)
			return m.HeapAlloc
		}
		before, during := held(), uint64(0)
		var all sync.WaitGroup
		for range delayed + 10 {
			all.Go(func() {
				r := call{ofAcme, "POST", batch, "{", nil}.request()
				r.Body, r.ContentLength = io.NopCloser(strings.NewReader(body)), int64(len(body))
				b.server.ServeHTTP(httptest.NewRecorder(), r)
			})
			synctest.Wait() // one after the other: they share the room of their token
		}
		during = held()
		all.Wait()
		if during > before+most {
			b.Errorf("%d answers to bodies of %d bytes are delayed, and hold %d bytes", delayed, len(body), during-before)
		}
	})
}
