package limiter_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limiter"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

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
	l, err := limiter.New(limiter.Options{Config: schema.Config{Tiers: []schema.Tier{{
		Name:   "essentials",
		Limits: []schema.Limit{{Name: "burst", Scope: schema.ScopeTenant, Limit: 1, WindowSize: 3600}},
	}}}})
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
