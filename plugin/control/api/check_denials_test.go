package api_test

import (
	"net/http"
	"strings"
	"testing"

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
		a = p.want(p.as("POST", path+"/batch", `{"checks":[`+body+`,{"org_id":"acme"},`+body+`]}`),
			http.StatusUnprocessableEntity)
		if got := read[problem](p.world, a).paths(); got != "body.checks[0].org_id body.checks[2].org_id" {
			t.Errorf("%s: faults at %s", body, got)
		}
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

func TestAnUnansweredLimitIsShownWithoutNumbers(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"open", "closed", "local"} {
		config := plan()
		config.FailMode = mode
		p := planning(t, config, enterprise())
		p.redis.Kill()
		for _, dry := range []string{"", `,"dry_run":true`} {
			a := p.want(p.as("POST", "/v1/ratelimit/check", `{"org_id":"acme"`+dry+`}`), http.StatusOK)
			got := read[struct {
				Statuses []map[string]any
			}](p.world, a)
			if len(got.Statuses) == 0 {
				t.Fatalf("fail_mode %s: %s", mode, a.Body)
			}
			for _, status := range got.Statuses {
				for _, number := range []string{"used", "remaining", "reset", "retry_after"} {
					if _, shown := status[number]; shown || status["source"] != "unanswered" {
						t.Errorf("fail_mode %s: %v shows %s", mode, status, number)
					}
				}
			}
		}
	}
}
