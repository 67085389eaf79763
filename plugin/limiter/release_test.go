package limiter_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limiter"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

func TestReleaseGivesBackTheSlotsOfARequestOnce(t *testing.T) {
	exports := schema.Limit{Name: "exports", Scope: "tenant", Limit: 2, Algorithm: "concurrency", MaxDuration: 60}
	tier := schema.Tier{Name: "a", Limits: []schema.Limit{exports}}
	l, err := limiter.New(limiter.Options{Config: schema.Config{Tiers: []schema.Tier{tier}}})
	require.NoError(t, err)
	defer func() { assert.NoError(t, l.Close(context.Background())) }()
	acquire := func(want bool) limiter.Decision {
		d, err := l.TryAcquire(t.Context(), limiter.Request{Org: "acme"})
		require.NoError(t, err)
		assert.Equal(t, want, d.Allowed)
		return d
	}
	first, second, third := acquire(true), acquire(true), acquire(false)
	third.Release() // of a denied request
	acquire(false)
	for range 2 {
		first.Release()
	}
	acquire(true)
	acquire(false)
	second.Release()
	acquire(true)
	handler := l.Middleware(orgOf)(new(served))
	for range 3 {
		assert.Equal(t, http.StatusNoContent, get(handler, "/", "Org", "other").Code, "the handler has returned each time")
	}
}

func TestARequestIsSettledOnceForItsLimitsThatSettleAndInTime(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	config := parse(t, `
tiers:
  - name: a
    limits:
      - {name: requests, scope: tenant, limit: 100, window_size: 86400, algorithm: fixed_window}
      - name: tokens
        scope: tenant
        limit: 1000
        window_size: 86400
        algorithm: fixed_window
        settle: {reserve: 300, timeout: 60, sources: [{from: header.X}]}`)
	l, err := limiter.New(limiter.Options{Config: config, Now: func() time.Time { return now }})
	require.NoError(t, err)
	defer func() { assert.NoError(t, l.Close(context.Background())) }()
	used := int64(0)
	for i, test := range []struct {
		end  func(*limiter.Decision) error
		wait time.Duration
		want int64 // that the request uses in the end
	}{
		{end: func(d *limiter.Decision) error { return d.Settle(40) }, want: 40},
		{end: func(d *limiter.Decision) error { return errors.Join(d.Settle(0), d.Settle(70)) }, want: 0},
		{end: func(d *limiter.Decision) error { d.Release(); return d.Settle(0) }, want: 300},
		{end: func(d *limiter.Decision) error { return d.Settle(10) }, wait: time.Minute + time.Second, want: 300},
		{end: func(d *limiter.Decision) error { return d.Settle(500) }, want: 500}, // beyond the limit
	} {
		d := acquire(t, l, limiter.Request{Org: "acme"})
		require.Equal(t, used+300, d.Statuses[1].Used, "before request %d", i)
		now = now.Add(test.wait)
		require.NoError(t, test.end(&d))
		used += test.want
	}
	d := acquire(t, l, limiter.Request{Org: "acme"})
	assert.Equal(t, []int64{5, 1140}, []int64{d.Statuses[0].Used, d.Statuses[1].Used})
	assert.False(t, d.Allowed)
	for _, tokens := range []int64{-1, limiter.MaxCost + 1} {
		assert.ErrorContains(t, d.Settle(tokens), "must be from 0 to", "%d tokens", tokens)
	}
}

func TestTheClockAndTheObserverAreThoseOfTheOptions(t *testing.T) {
	now := time.Unix(1_700_000_000, 0) // 800 s after the start of an hour
	var seen []string
	l, err := limiter.New(limiter.Options{
		Config: parse(t, `
tiers: [{name: a, limits: [{name: hourly, scope: tenant, limit: 1, window_size: 3600, algorithm: fixed_window}]}]`),
		Now: func() time.Time { return now },
		Observe: func(r limiter.Request, d limiter.Decision) {
			seen = append(seen, fmt.Sprint(r.Org, r.Path, " ", d.Result, " ", d.RetryAfter, " ", d.Reset.Unix()-1_700_000_000))
		},
	})
	require.NoError(t, err)
	defer func() { assert.NoError(t, l.Close(context.Background())) }()
	for range 3 {
		acquire(t, l, limiter.Request{Org: "acme"})
		now = now.Add(1400 * time.Second)
	}
	get(l.Middleware(orgOf)(new(served)), "/records", "Org", "other")
	assert.Equal(t, []string{
		"acme allowed 0s 2800", "acme hard_throttled 23m20s 2800", "acme allowed 0s 6400", "other/records allowed 0s 6400",
	}, seen)
}

func TestACallOfAModelSettlesLimitsOfTokensAndOfMoney(t *testing.T) {
	for _, source := range []string{"prices", "header.X"} { // whatever a limit reads in Kong
		t.Run(source, func(t *testing.T) { settleACall(t, source) })
	}
}

func settleACall(t *testing.T, source string) {
	config := parse(t, strings.ReplaceAll(`
llm: {model: header.M, prompt_tokens: header.P, completion_tokens: header.C, prices: [
  {model: gpt-4o, prompt: "2.5", completion: "10"}]}
tiers:
  - name: a
    limits:
      - {name: budget, scope: tenant, limit: 20000000, unit: usd, window_size: 86400, algorithm: fixed_window,
         settle: {reserve: 1000000, sources: [{from: prices}]}}
      - {name: minis, scope: tenant, limit: 20000000, unit: usd, window_size: 86400, algorithm: fixed_window,
         match: {model: "o3*"}, settle: {reserve: 1000000, sources: [{from: prices}]}}
      - {name: tokens, scope: tenant, limit: 1000000, window_size: 86400, algorithm: fixed_window,
         settle: {reserve: 5000, sources: [{from: header.X}]}}`, "from: prices", "from: "+source))
	l, err := limiter.New(limiter.Options{Config: config})
	require.NoError(t, err)
	defer func() { assert.NoError(t, l.Close(context.Background())) }()
	chat := l.Middleware(orgOf)(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		d := limiter.FromContext(r.Context())
		assert.ErrorContains(t, d.Settle(5), "limits of two units")
		assert.ErrorContains(t, d.SettleCall(limiter.Call{PromptTokens: 1}), "must have a model")
		assert.NoError(t, d.SettleCall(limiter.Call{Model: "gpt-4o", PromptTokens: 300, CompletionTokens: 121}))
	}))
	require.Equal(t, http.StatusOK, get(chat, "/", "Org", "acme").Code)
	d := acquire(t, l, limiter.Request{Org: "acme", Model: "gpt-4o"})
	var used []string
	for _, status := range d.Statuses {
		used = append(used, fmt.Sprint(status.Policy, " ", status.Used, status.Unit))
	}
	assert.Equal(t, []string{"budget 1001960usd", "minis 0usd", "tokens 5421"}, used)
}
