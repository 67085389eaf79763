package api_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/addresses"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

const (
	acmeUsage = acmePath + "/ratelimit/usage"
	acmeReset = acmePath + "/ratelimit/reset"
)

// using returns a world in which acme has used 4 of each of its limits at POST /records, and globex 1.
func using(t *testing.T) *planned {
	t.Helper()
	rows := enterprise()
	rows.Tenants = append(rows.Tenants, schema.Tenant{ID: "globex", Tier: "enterprise"})
	p := planning(t, plan(), rows)
	p.checks(admin, `{"org_id":"acme","user_id":"u_42","endpoint":"POST /records/7","cost":4}`)
	p.checks(admin, `{"org_id":"globex","user_id":"u_42","endpoint":"POST /records/7"}`)
	return p
}

func TestUsageIsReadAndNotSpent(t *testing.T) {
	t.Parallel()
	p := using(t)
	var last answers.Usage
	for range 2 {
		last = read[answers.Usage](p.world, p.want(p.do(call{ofAcme, "GET", acmeUsage + "?user=u_42", "", nil}),
			http.StatusOK))
	}
	if last.Org != "acme" || last.Namespace != "default" || last.Tier != "enterprise" ||
		last.Source != "row" || len(last.Items) != 3 {
		t.Fatalf("%+v: want the three limits of acme", last)
	}
	i := slices.IndexFunc(last.Items, func(b answers.BucketUsage) bool { return b.Policy == "writes" })
	got := last.Items[i]
	reset := got.Reset
	got.Reset, got.ResetAfter = time.Time{}, 0
	want := answers.BucketUsage{
		Policy: "writes", Tier: "enterprise", Of: "the org", Endpoint: "POST /records/{id}", Scope: "tenant",
		Description: "20 per 86400 s (token_bucket) per tenant",
		Limit:       20, Window: schema.Window{WindowSize: 86400}, Used: 4, Remaining: 16, Fraction: 0.2, Mode: "enforce",
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	if left := time.Until(reset); left < 4*time.Hour || left > 5*time.Hour ||
		last.Items[i].ResetAfter < int64(4*time.Hour/time.Second) {
		t.Errorf("the reset is at %v, after %d s; want it when 4 of 20 a day have come back", reset, last.Items[i].ResetAfter)
	}
}

func TestUsageShowsTheRequestedBuckets(t *testing.T) {
	t.Parallel()
	p := using(t)
	for query, want := range map[string]map[string]int64{
		"":                              {"daily of the org": 4, "writes at POST /records/{id} of the org": 4},
		"?policy=daily":                 {"daily of the org": 4},
		"?policy=none":                  {},
		"?endpoint=GET+/":               {"daily of the org": 4},
		"?endpoint=post+/records/1/":    {"daily of the org": 4, "writes at POST /records/{id} of the org": 4},
		"?endpoint=a-route":             {"daily of the org": 4},
		"?user=u_1&policy=per-user":     {"per-user of user u_1": 0},
		"?user=u_42&endpoint=GET+/find": {"daily of the org": 4, "per-user of user u_42": 4},
	} {
		if got := p.has("acme", query); !maps.Equal(got, want) {
			t.Errorf("%s: %v, want %v", query, got, want)
		}
	}
	a := p.want(p.as("GET", acmeUsage+"?ip=nowhere&endpoint=+&tier="+strings.Repeat("x", 65)+"&policy="+strings.Repeat("x",
		65), ""), http.StatusUnprocessableEntity)
	if got := read[problem](p.world, a).paths(); got != "query.endpoint query.ip query.policy query.tier" {
		t.Errorf("faults at %s", got)
	}
}

func TestUsageAndResetOfAnAddressAreOfItsPrefixTooWhereThatCountsIt(t *testing.T) {
	t.Parallel()
	config := plan()
	config.OnMissingUser = "ip"
	p := planning(t, config, enterprise())
	const apart = 10 // ten seconds' worth of new addresses
	budget := addresses.New(addresses.Options{Now: func() limit.Micros { return limit.Second }, Rate: 1})
	p.decider.Buckets = budget.Store(p.store, nil) // no address is counted in this process
	for i := range apart + 1 {
		p.checks(admin, fmt.Sprintf(`{"org_id":"acme","ip":"192.0.2.%d","endpoint":"GET /","cost":2}`, i))
	}
	const query = "?policy=per-user&ip=192.0.2."
	first := map[string]int64{"per-user of ip 192.0.2.0": 2, "per-user of ip 192.0.2.0/24": 2}
	if got := p.has("acme", query+"0"); !maps.Equal(got, first) {
		t.Errorf("%v are used, want %v", got, first)
	}
	last := map[string]int64{"per-user of ip 192.0.2.10": 0, "per-user of ip 192.0.2.0/24": 2}
	if got := p.has("acme", query+"10"); !maps.Equal(got, last) {
		t.Errorf("%v are used, want %v", got, last)
	}
	p.want(p.as("POST", acmeReset, `{"policy":"per-user","ip":"192.0.2.10","reason":"an office"}`), http.StatusOK)
	if got := p.has("acme", query+"10"); !maps.Equal(got, map[string]int64{"per-user of ip 192.0.2.10": 0}) {
		t.Errorf("%v are used after a reset, want nothing, and no prefix", got)
	}
}

func TestUsageShowsWhereTokensMayBeOutOnLease(t *testing.T) {
	t.Parallel()
	config := plan()
	config.Strategy = "redis"
	config.Tiers[0].Limits = append(config.Tiers[0].Limits, limitOf("large", "", 1_000_000))
	config = config.WithDefaults()
	p := planning(t, config, policy.Rows{})
	for _, b := range read[answers.Usage](p.world, p.want(p.as("GET", acmeUsage, ""), http.StatusOK)).Items {
		if b.MayLease != (b.Policy == "large") {
			t.Errorf("%+v: want only large to be leased", b)
		}
	}
}

func TestMoreBucketsThanOneCallTakesAreAllRead(t *testing.T) {
	t.Parallel()
	config := plan()
	for i := range 300 {
		config.Tiers[0].Limits = append(config.Tiers[0].Limits, limitOf(fmt.Sprint("p", i), fmt.Sprint("GET /", i), 10))
	}
	p := planning(t, config, policy.Rows{})
	if n := len(p.has("acme", "")); n != 301 {
		t.Errorf("%d buckets are read, want 301", n)
	}
}

func TestUsageReportsThatRedisIsUnavailableAndNothingIsReset(t *testing.T) {
	t.Parallel()
	p := using(t)
	p.redis.Kill()
	a := p.want(p.as("GET", acmeUsage, ""), http.StatusServiceUnavailable)
	if !strings.Contains(read[problem](p.world, a).Detail, "redis_") {
		t.Errorf("%s: want the reason", a.Body)
	}
	for _, body := range []string{`{"preview":true}`, `{"reason":"billed twice"}`} {
		p.want(p.as("POST", acmeReset, body), http.StatusServiceUnavailable)
	}
	if entries := p.resets(); len(entries) != 0 {
		t.Errorf("the audit has %+v, want nothing: no bucket was read", entries)
	}
}

// resets returns the resets in the audit.
func (p *planned) resets() []rows.AuditEntry {
	p.Helper()
	entries, err := p.world.store.Audit(p.Context(), rows.AuditFilter{Kind: "action"})
	require.NoError(p, err)
	return entries
}

func TestAResetByTheAPIEmptiesTheBucketsOfOneOrgAndIsAudited(t *testing.T) {
	t.Parallel()
	p := using(t)
	preview := read[api.Reset](p.world, p.want(p.as("POST", acmeReset, `{"policy":"daily","preview":true}`),
		http.StatusOK))
	if !preview.Preview || len(preview.Buckets) != 1 || preview.Buckets[0].Used != 4 ||
		p.has("acme", "")["daily of the org"] != 4 || len(p.resets()) != 0 {
		t.Errorf("%+v: want a preview of daily, and nothing done", preview)
	}
	done := read[api.Reset](p.world, p.want(p.as("POST", acmeReset, `{"policy":"daily","reason":"billed twice"}`),
		http.StatusOK))
	if done.Preview || len(done.Buckets) != 1 || done.Buckets[0].Used != 4 || !strings.Contains(done.Note, "lease") {
		t.Errorf("%+v: want daily as it was", done)
	}
	if got := p.has("acme", "?user=u_42"); got["daily of the org"] != 0 || got["per-user of user u_42"] != 4 {
		t.Errorf("used is %v, want only daily reset", got)
	}
	p.want(p.as("POST", acmeReset, `{"user":"u_42","reason":"billed twice"}`), http.StatusOK)
	for name, used := range p.has("acme", "?user=u_42") {
		if used != 0 {
			t.Errorf("%s has used %d after a reset of all", name, used)
		}
	}
	if got := p.has("globex", "?user=u_42"); got["daily of the org"] != 1 || got["per-user of user u_42"] != 1 {
		t.Errorf("another org has used %v, want 1 of each", got)
	}
	entries := p.resets()
	if len(entries) != 2 {
		t.Fatalf("the audit has %+v, want two resets", entries)
	}
	first := entries[1]
	var emptied struct{ Buckets []rows.EmptiedBucket }
	if json.Unmarshal(first.After, &emptied) != nil || len(emptied.Buckets) != 1 || emptied.Buckets[0].Used != 4 {
		t.Errorf("the audit has %s, want what was used", first.After)
	}
	if first.Actor != "token:ann" || first.Reason != "billed twice" || first.Operation != "reset" ||
		first.Key != "buckets" || first.Tenant != "acme" {
		t.Errorf("the audit has %+v", first)
	}
}

func TestARepeatedResetIsAnsweredWithoutAnotherReset(t *testing.T) {
	t.Parallel()
	p := using(t)
	once := func(body string) answer { return p.as("POST", acmeReset, body, "Idempotency-Key", "k 1") }
	first := p.want(once(`{"reason":"billed twice"}`), http.StatusOK)
	p.checks(admin, `{"org_id":"acme","cost":3}`)
	again := p.want(once(`{"reason":"billed twice"}`), http.StatusOK)
	if again.Body.String() != first.Body.String() || again.Header().Get("Idempotent-Replayed") != "true" ||
		first.Header().Get("Idempotent-Replayed") != "" {
		t.Errorf("answered\n%s, and then\n%s", first.Body, again.Body)
	}
	if used := p.has("acme", "")["daily of the org"]; used != 3 || len(p.resets()) != 1 {
		t.Errorf("%d are used and the audit has %d resets, want 3 and 1", used, len(p.resets()))
	}
	p.wantFaults(once(`{"reason":"thrice"}`), "header.Idempotency-Key")
	spelled := strings.Replace(acmeReset, "acme", "%61cme", 1)
	p.want(p.as("POST", spelled, `{"reason":"billed twice"}`, "Idempotency-Key", "k 1"), http.StatusOK)
}

// cold wraps buckets in Redis. Its Forget first calls a function, and stops if that fails.
type cold struct {
	api.Buckets
	before func(ctx context.Context) error
}

func (c *cold) Forget(ctx context.Context, bounds []policy.Bound) (int, error) {
	if err := c.before(ctx); err != nil {
		return 0, err
	}
	return c.Buckets.Forget(ctx, bounds)
}

// chilled returns a world like using, with cold buckets.
func chilled(t *testing.T, before func(ctx context.Context) error) *planned {
	t.Helper()
	p := using(t)
	options := p.server.Options
	options.OperatorBuckets = &cold{p.store, before}
	server, err := api.New(options)
	require.NoError(t, err)
	p.server = server
	return p
}

func TestAResetThatIsRecordedGoesOnWithoutItsCaller(t *testing.T) {
	t.Parallel()
	ctx, leave := context.WithCancel(t.Context())
	p := chilled(t, func(ctx context.Context) error {
		leave()
		return ctx.Err()
	})
	c := call{admin, "POST", acmeReset, `{"reason":"billed twice"}`, []string{"Idempotency-Key", "k"}}
	p.want(p.serve(c, c.request().WithContext(ctx)), http.StatusOK)
	if used := p.has("acme", "")["daily of the org"]; used != 0 {
		t.Errorf("%d are used, want it reset", used)
	}
	if a := p.want(p.do(c), http.StatusOK); a.Header().Get("Idempotent-Replayed") != "true" {
		t.Error("its key is not stored")
	}
}

func TestAResetWhoseKeyCannotBeStoredIsMadeAndLogged(t *testing.T) {
	t.Parallel()
	var p *planned
	p = chilled(t, func(ctx context.Context) error {
		_, err := p.pool.Exec(ctx, `ALTER TABLE rate_limiter.answers RENAME TO renamed`)
		return err
	})
	a := p.want(p.as("POST", acmeReset, `{"reason":"billed twice"}`, "Idempotency-Key", "k"), http.StatusOK)
	if used := p.has("acme", "")["daily of the org"]; used != 0 || a.Header().Get("Idempotent-Replayed") != "" {
		t.Errorf("%d are used after %v %s", used, a.Header(), a.Body)
	}
	if !strings.Contains(p.log.String(), "Idempotency-Key was not stored") {
		t.Errorf("the log has %s", p.log)
	}
}

func TestTheKeyOfAResetIsOfItsOrg(t *testing.T) {
	t.Parallel()
	p := using(t)
	const body = `{"reason":"billed twice"}`
	p.want(p.as("POST", acmeReset, body, "Idempotency-Key", "k"), http.StatusOK)
	p.wantFaults(p.as("POST", "/v1/orgs/globex/ratelimit/reset", body, "Idempotency-Key", "k"), "header.Idempotency-Key")
	if used := p.has("globex", "")["daily of the org"]; used != 1 {
		t.Errorf("globex has used %d, want 1 as before", used)
	}
}

func TestAResetNeedsAReasonAndWellFormedFields(t *testing.T) {
	t.Parallel()
	p := using(t)
	for body, want := range map[string]string{
		`{}`:                               "body.reason",
		`{"preview":false,"reason":" \n"}`: "body.reason",
		`{"reason":"` + strings.Repeat("ü", 513) + `"}`:                      "body.reason",
		`{"reason":"r","endpoint":"records x","ip":"x","surprise":[]}`:       "body.endpoint body.ip body.surprise",
		`{"reason":"r","preview":"yes","policy":7,"user":"a\u0000"}`:         "body.user",
		`{"reason":"r","user":"` + strings.Repeat("x", 1025) + `","tier":0}`: "body.tier body.user",
	} {
		p.wantFaults(p.as("POST", acmeReset, body), want)
	}
	for _, token := range []string{viewer, ofAcme} {
		p.want(p.do(call{token, "POST", acmeReset, `{"preview":true}`, nil}), http.StatusForbidden)
	}
	if used := p.has("acme", "")["daily of the org"]; used != 4 {
		t.Errorf("%d are used, want 4 as before", used)
	}
}

func TestNothingIsResetThatCannotBeAudited(t *testing.T) {
	t.Parallel()
	p := using(t)
	p.pool.Close()
	p.want(p.as("POST", acmeReset, `{"reason":"billed twice"}`), http.StatusServiceUnavailable)
	if used := p.has("acme", "")["daily of the org"]; used != 4 {
		t.Errorf("%d are used, want 4 as before", used)
	}
}
