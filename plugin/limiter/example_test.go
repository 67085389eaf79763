package limiter_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limiter"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// start makes a limiter of a config that is known to be right.
func start(text string) *limiter.Limiter {
	config, err := limiter.Parse([]byte(text))
	if err != nil {
		log.Fatal(err)
	}
	l, err := limiter.New(limiter.Options{Config: config})
	if err != nil {
		log.Fatal(err)
	}
	return l
}

// A tenant may write two records an hour, and every policy is one of a tier.
func ExampleLimiter_TryAcquire() {
	config, err := limiter.Parse([]byte(`
tiers:
  - name: essentials
    limits:
      - {name: hourly, scope: tenant, limit: 100, window_size: 3600}
      - {name: writes, scope: tenant, endpoint: "POST /records", limit: 2, window_size: 3600}
  - name: unlimited
    limits: []
`))
	if err != nil {
		fmt.Println(err)
		return
	}
	l, err := limiter.New(limiter.Options{Config: config})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx := context.Background()
	defer l.Close(ctx)

	for range 3 {
		d, err := l.TryAcquire(ctx, limiter.Request{Org: "acme", Endpoint: "POST /records"})
		if err != nil {
			fmt.Println(err)
		}
		fmt.Printf("acme: allowed %v, %d of %d left of %s, wait %v\n",
			d.Allowed, d.Remaining, d.Limit, d.Policy, d.RetryAfter.Round(time.Minute))
	}
	d, err := l.TryAcquire(ctx, limiter.Request{Org: "globex", Tier: "unlimited", Endpoint: "POST /records"})
	fmt.Println("globex: allowed", d.Allowed, err)
	// Output:
	// acme: allowed true, 1 of 2 left of writes, wait 0s
	// acme: allowed true, 0 of 2 left of writes, wait 0s
	// acme: allowed false, 0 of 2 left of writes, wait 30m0s
	// globex: allowed true <nil>
}

func ExampleLimiter_Middleware() {
	noon := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	l, err := limiter.New(limiter.Options{
		Config: schema.Config{Tiers: []schema.Tier{{
			Name:   "essentials",
			Limits: []schema.Limit{{Name: "burst", Scope: schema.ScopeTenant, Limit: 1, WindowSize: 3600}},
		}}},
		Now: func() time.Time { return noon }, // for an output that is always the same
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer l.Close(context.Background())

	hello := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") })
	identify := func(r *http.Request) limiter.Request {
		org, _, _ := r.BasicAuth() // verified by whatever stands in front
		return limiter.Request{Org: org}
	}
	handler := l.Middleware(identify)(hello)

	for range 2 {
		r := httptest.NewRequest("GET", "/", nil)
		r.SetBasicAuth("acme", "…")
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		fmt.Println(w.Code, w.Header().Get("X-RateLimit-Limit"), w.Header().Get("X-RateLimit-Remaining"),
			w.Header().Get("Retry-After"), w.Header().Get("Content-Type"))
	}
	// Output:
	// 200 1 0  text/plain; charset=utf-8
	// 429 1 0 3600 application/problem+json
}

// A tenant may run one export at a time.
func ExampleDecision_Release() {
	l := start(`
tiers:
  - name: essentials
    limits: [{name: exports, scope: tenant, limit: 1, algorithm: concurrency, max_duration: 60}]`)
	ctx := context.Background()
	defer l.Close(ctx)

	export := func() {
		d, err := l.TryAcquire(ctx, limiter.Request{Org: "acme"})
		if err != nil {
			fmt.Println(err)
		}
		defer d.Release() // when the export is done
		fmt.Println("allowed", d.Allowed)
		if second, err := l.TryAcquire(ctx, limiter.Request{Org: "acme"}); d.Allowed {
			fmt.Println("another meanwhile: allowed", second.Allowed, err)
		}
	}
	export()
	export()
	// Output:
	// allowed true
	// another meanwhile: allowed false <nil>
	// allowed true
	// another meanwhile: allowed false <nil>
}

// A request reserves 500 tokens of a model, and is charged the 120 that its answer took.
func ExampleDecision_Settle() {
	l := start(`
tiers:
  - name: essentials
    limits:
      - name: llm-tokens
        scope: tenant
        limit: 1000
        window_size: 86400
        settle: {reserve: 500, sources: [{from: header.X-Tokens}]} # Kong reads the header, a program calls Settle`)
	ctx := context.Background()
	defer l.Close(ctx)

	for range 2 {
		d, err := l.TryAcquire(ctx, limiter.Request{Org: "acme"})
		if err != nil {
			fmt.Println(err)
		}
		fmt.Printf("allowed %v, %d of %d left\n", d.Allowed, d.Remaining, d.Limit)
		if err := d.Settle(120); err != nil {
			fmt.Println(err)
		}
	}
	// Output:
	// allowed true, 500 of 1000 left
	// allowed true, 380 of 1000 left
}

// A test moves the clock, and waits for nothing.
func ExampleOptions_now() {
	now := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	l, err := limiter.New(limiter.Options{
		Config: schema.Config{Tiers: []schema.Tier{{Name: "a", Limits: []schema.Limit{
			{Name: "hourly", Scope: "tenant", Limit: 1, WindowSize: 3600, Algorithm: "fixed_window"},
		}}}},
		Now: func() time.Time { return now },
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx := context.Background()
	defer l.Close(ctx)

	for range 3 {
		d, err := l.TryAcquire(ctx, limiter.Request{Org: "acme"})
		fmt.Println(now.Format("15:04"), d.Allowed, d.RetryAfter, err)
		now = now.Add(30 * time.Minute)
	}
	// Output:
	// 12:00 true 0s <nil>
	// 12:30 false 30m0s <nil>
	// 13:00 true 0s <nil>
}
