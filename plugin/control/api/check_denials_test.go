package api_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/lease"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

func TestACheckWithoutAnyIdentityIsAFaultWhereLimitsAreCountedPerOrg(t *testing.T) {
	t.Parallel()
	const path = "/v1/ratelimit/check"
	p := planning(t, plan(), enterprise())
	for _, body := range []string{`{}`, `{"endpoint":"POST /records/7","cost":2}`, `{"dry_run":true}`} {
		a := p.want(p.as("POST", path, body), http.StatusUnprocessableEntity)
		if got := read[problem](p.world, a); got.paths() != "body.org_id" ||
			!strings.Contains(got.Errors[0].Message, "acme") {
			t.Errorf("%s: %s, want org_id named, with an example", body, a.Body)
		}
		p.wantFaults(p.as("POST", path+"/batch", `{"checks":[`+body+`,{"org_id":"acme"},`+body+`]}`),
			"body.checks[0].org_id body.checks[2].org_id")
	}
	for _, body := range []string{`{"user_id":"u_42"}`, `{"credential_id":"c"}`, `{"ip":"192.0.2.1"}`} {
		p.want(p.as("POST", path, body), http.StatusOK)
	}
	if used := p.has("acme", "")["daily of the org"]; used != 0 {
		t.Errorf("%d are used by batches that were denied", used)
	}
	shared := planning(t, schema.Config{Global: plan().Global}.WithDefaults(), policy.Rows{})
	if got := shared.checks(admin, `{}`); !got.Allowed || got.Policy != "all" {
		t.Errorf("where all count together: %+v", got)
	}
}

func TestACheckNotesThatNoPatternCoversItsEndpoint(t *testing.T) {
	t.Parallel()
	p := planning(t, plan(), enterprise())
	for body, noted := range map[string]bool{
		`{"org_id":"acme","endpoint":"POST /recrods/7"}`:                true,
		`{"org_id":"acme","endpoint":"POST /recrods/7","dry_run":true}`: true,
		`{"org_id":"acme","endpoint":"POST /records/7"}`:                false,
		`{"org_id":"acme","endpoint":"a-route"}`:                        true, // which nothing knows
		`{"org_id":"acme"}`:                                             false,
	} {
		if got := p.checks(admin, body); (len(got.Notes) == 1) != noted {
			t.Errorf("%s: the notes are %q", body, got.Notes)
		}
	}
	shared := planning(t, schema.Config{Global: plan().Global}.WithDefaults(), policy.Rows{})
	if got := shared.checks(admin, `{"endpoint":"POST /recrods/7"}`); len(got.Notes) != 0 {
		t.Errorf("where no limit is about an endpoint: %q", got.Notes)
	}
}

func TestACostAboveTheCapacityOfALimitIsDeniedForAReasonOfItsOwn(t *testing.T) {
	t.Parallel()
	p := planning(t, plan(), enterprise())
	for _, dry := range []string{"", `,"dry_run":true`} {
		got := p.checks(admin, `{"org_id":"acme","endpoint":"POST /records/7","cost":21`+dry+`}`)
		if got.Allowed || got.Reason != "cost_too_large" || got.Policy != "writes" || got.RetryAfter != 0 ||
			len(got.Notes) != 1 || !strings.Contains(got.Notes[0], "20") || !strings.Contains(got.Notes[0], "writes") {
			t.Errorf("%+v", got)
		}
	}
	p.checks(admin, `{"org_id":"acme","endpoint":"POST /records/7","cost":20}`)
	if got := p.checks(admin, `{"org_id":"acme","endpoint":"POST /records/7"}`); got.Reason != "limit_exceeded" ||
		len(got.Notes) != 0 {
		t.Errorf("%+v: want a reason other than that of a limit that is used up", got)
	}
}

func TestWithoutRedisFailModesDecideChecksAndNoNumbersAreShown(t *testing.T) {
	t.Parallel()
	p := planning(t, plan(), enterprise())
	p.redis.Kill()
	for mode, allowed := range map[string]bool{"open": true, "closed": false, "local": true} {
		config := plan()
		config.FailMode = mode
		ruled(t, p.decider, config, enterprise())
		for _, dry := range []string{"", `,"dry_run":true`} {
			a := p.want(p.as("POST", "/v1/ratelimit/check", `{"org_id":"acme"`+dry+`}`), http.StatusOK)
			got := read[struct {
				Allowed, Degraded bool
				Reason            string
				Statuses          []map[string]any
			}](p.world, a)
			if got.Allowed != allowed || !got.Degraded || len(got.Statuses) == 0 || !allowed && got.Reason != "store_away" {
				t.Fatalf("fail_mode %s: %s", mode, a.Body)
			}
			for _, status := range got.Statuses {
				for _, number := range []string{"used", "remaining", "reset", "retry_after"} {
					if _, shown := status[number]; shown || status["source"] != "unanswered" || status["failure"] == "" {
						t.Errorf("fail_mode %s: %v shows %s", mode, status, number)
					}
				}
			}
		}
	}
}

// leasing returns a planned world whose nodes may lease tokens.
func leasing(t *testing.T, config schema.Config, rows policy.Rows) *planned {
	t.Helper()
	p := planning(t, config, rows)
	view := lease.New(p.store, lease.Options{Now: clock, Nodes: func(string) int { return 1 }}).Store(p.store)
	p.decider.Buckets = view
	storePolicy := func(p *policy.Policy) *policy.Policy { return lease.StorePolicy(p, lease.DefaultSharePct) }
	p.world = open(t, func(o *api.Options) { o.Decider, o.Buckets, o.RequestPolicy = p.decider, p.store, storePolicy })
	return p
}

func TestACostAboveWhatALeasedBucketHoldsIsTooLargeThoughTheLimitHasMore(t *testing.T) {
	t.Parallel()
	config := plan()
	config.Tiers = []schema.Tier{{Name: "essentials", Limits: []schema.Limit{{
		Name: "second", Scope: "tenant", Limit: 1000, WindowSize: 100,
	}}}}
	config.Global = schema.Global{}
	p := leasing(t, config.WithDefaults(), policy.Rows{})
	for _, dry := range []string{`,"dry_run":true`, ""} {
		for range 2 { // the second denial is remembered
			got := p.checks(admin, `{"org_id":"acme","cost":993`+dry+`}`)
			if got.Allowed || got.Reason != "cost_too_large" || got.Policy != "second" ||
				got.RetryAfter != 0 || len(got.Notes) != 1 ||
				!strings.Contains(got.Notes[0], "never has more than 992") || !strings.Contains(got.Notes[0], "accuracy: exact") ||
				!strings.Contains(got.Notes[0], "1000") {
				t.Errorf("dry_run %q: %+v", dry, got)
			}
		}
		if got := p.checks(admin, `{"org_id":"acme","cost":1001`+dry+`}`); got.Reason != "cost_too_large" ||
			len(got.Notes) != 1 || strings.Contains(got.Notes[0], "exact") {
			t.Errorf("dry_run %q: %+v: want no advice, because nothing helps", dry, got)
		}
	}
	if dry, wet := p.checks(admin, `{"org_id":"acme","cost":992,"dry_run":true}`),
		p.checks(admin, `{"org_id":"acme","cost":992}`); !dry.Allowed || !wet.Allowed ||
		*dry.Remaining != 992 || *wet.Remaining != 0 {
		t.Errorf("the dry run returns %+v, the request %+v: want both admitted", dry, wet)
	}
	if dry, wet := p.checks(admin, `{"org_id":"acme","cost":500,"dry_run":true}`),
		p.checks(admin, `{"org_id":"acme","cost":500}`); dry.Allowed || wet.Allowed || dry.Reason != "limit_exceeded" ||
		wet.Reason != dry.Reason || len(dry.Notes)+len(wet.Notes) != 0 {
		t.Errorf("the dry run returns %+v, the request %+v: want both denied for now", dry, wet)
	}
}

// broken implements buckets that return an error.
type broken struct{ api.Buckets }

func (broken) Take(context.Context, []policy.Bound, []decision.Status) error {
	return errors.New("password=hunter2 is wrong")
}

func (broken) Peek(context.Context, []policy.Bound, []decision.Status) error {
	return errors.New("password=hunter2 is wrong")
}

func (broken) Forget(context.Context, []policy.Bound) (int, error) {
	return 0, errors.New("password=hunter2 is wrong")
}

func TestAnInternalErrorIsDecidedByTheConfigAndReportedWithoutDetails(t *testing.T) {
	t.Parallel()
	for _, closed := range []bool{false, true} {
		decider := deciderOf(t, plan(), broken{}, policy.Rows{})
		decider.FailClosed = closed
		p := &planned{world: open(t, func(o *api.Options) { o.Decider, o.Buckets = decider, broken{} })}
		for _, body := range []string{`{"org_id":"acme"}`, `{"org_id":"acme","dry_run":true}`} {
			if got := p.checks(admin, body); got.Allowed == closed || got.Reason != "internal_fault" || len(got.Statuses) != 0 {
				t.Errorf("%s: %+v, want allowed %v", body, got, !closed)
			}
		}
		a := p.want(p.as("GET", acmeUsage, ""), http.StatusServiceUnavailable)
		if strings.Contains(a.Body.String(), "hunter2") {
			t.Errorf("the answer has %s", a.Body)
		}
	}
}

func TestADryRunNeedsBucketsThatAreShared(t *testing.T) {
	t.Parallel()
	config := plan()
	w := open(t, func(o *api.Options) { o.Decider = deciderOf(t, config, shelf{}, policy.Rows{}) })
	for _, a := range []answer{
		w.as("POST", "/v1/ratelimit/check", `{"org_id":"acme","dry_run":true}`), w.as("GET", acmeUsage, ""),
		w.as("POST", acmeReset, `{"preview":true}`),
	} {
		w.want(a, http.StatusServiceUnavailable)
		if !strings.Contains(a.Body.String(), "every node keeps its own") {
			t.Errorf("%s", a.Body)
		}
	}
}

func TestChecksAreNotCountedAsAnonymousWhereOrgsCannotBeIdentified(t *testing.T) {
	t.Parallel()
	decider := deciderOf(t, plan(), broken{}, policy.Rows{})
	ruledByGateway(t, decider, plan(), policy.Rows{})
	w := open(t, func(o *api.Options) { o.Decider = decider })
	a := w.want(w.as("POST", "/v1/ratelimit/check", `{"org_id":"acme"}`), http.StatusInternalServerError)
	if !strings.Contains(w.log.String(), "decision path misconfigured") || strings.Contains(a.Body.String(), "admit.") {
		t.Errorf("%s, and the log has %s", a.Body, w.log)
	}
}
