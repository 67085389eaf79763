package api_test

import (
	"strings"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/lease"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// oneNode is the only node.
type oneNode struct{}

func (oneNode) LeaseNodes(string) int { return 1 }

// leasing returns a planned world whose nodes may lease tokens.
func leasing(t *testing.T, config schema.Config, rows policy.Rows) *planned {
	t.Helper()
	p := planning(t, config, rows)
	view := lease.New(p.store, lease.Options{Now: clock, Nodes: oneNode{}}).Store(p.store)
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
