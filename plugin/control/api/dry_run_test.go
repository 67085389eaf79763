package api_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// broken implements buckets that return an error.
type broken struct{}

func (broken) Take(context.Context, []policy.Bound, []decision.Status) error {
	return errors.New("password=hunter2 is wrong")
}

func (broken) Peek(context.Context, []policy.Bound, []decision.Status) error {
	return errors.New("password=hunter2 is wrong")
}

func (broken) Forget(context.Context, []policy.Key) (int, error) {
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
