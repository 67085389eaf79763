package api_test

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/redis"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

func TestADryRunInAClusterSpendsNothingEvenForAMoment(t *testing.T) {
	t.Parallel()
	nodes := redistest.Cluster(t, 3, 0)
	block := schema.Redis{ConnectTimeout: 5000, SendTimeout: 5000, ReadTimeout: 5000}
	for _, server := range nodes.All() {
		block.ClusterNodes = append(block.ClusterNodes, schema.RedisClusterNode{IP: server.Host, Port: int64(server.Port)})
	}
	store, closeRedis, err := redis.NewRegistry(slog.New(slog.DiscardHandler), nil).Open(block)
	if err != nil {
		t.Fatal(err)
	}
	defer closeRedis()
	decider := deciderOf(t, plan(), store, enterprise())
	p := &planned{world: open(t, func(o *api.Options) { o.Decider, o.Buckets = decider, store }), decider: decider}
	p.checks(admin, `{"org_id":"acme","cost":3}`)
	for body, allowed := range map[string]bool{
		`{"org_id":"acme","cost":997,"dry_run":true}`: true,
		`{"org_id":"acme","cost":998,"dry_run":true}`: false,
	} {
		calls := store.Stats().Calls
		if got := p.checks(viewer, body); got.Allowed != allowed || len(got.Statuses) != 2 || got.Degraded {
			t.Errorf("%s: %+v, want allowed %v", body, got, allowed)
		}
		// One call for the org's group of buckets, one for those of all orgs: none of them had anything to give back.
		if n := store.Stats().Calls - calls; n != 2 {
			t.Errorf("%s: %d calls, want 2", body, n)
		}
	}
	if used := p.has("acme", "")["daily of the org"]; used != 3 {
		t.Errorf("%d are used, want 3", used)
	}
}

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
