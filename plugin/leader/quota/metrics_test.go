package quota_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/promtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/leader/quota"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

func TestNoticesAreCountedByThreshold(t *testing.T) {
	w := newWorld(t, daily(100))
	w.spend("acme", "a", 80, 0)
	w.spend("globex", "a", 90, 0)
	w.spend("initech", "a", 50, 0)
	_, err := w.lead(true)
	require.NoError(t, err)
	values := promtest.CheckPublished(t, "testdata/metrics.golden", w.watcher)
	promtest.WantValues(t, values, "rate_limiter_quota_notices_total ", map[string]float64{"100": 0, "50": 1, "80": 2})
	if at := values["rate_limiter_quota_checked_timestamp_seconds"]; at < float64(time.Now().Add(-time.Hour).Unix()) {
		t.Errorf("the time of the check is %v", at)
	}
}

func TestNoticesHaveThePublishedForm(t *testing.T) {
	published, err := jsonschema.NewCompiler().Compile("../../../schema/quota_threshold.schema.json")
	require.NoError(t, err)
	at := noon.Add(time.Hour)
	full := quota.Notice{
		Version: 1, Tenant: "=cmd,\"b\"\n", Policy: "daily", Endpoint: "POST /a/{id}", Threshold: 80, Limit: 100, Used: 85,
		WindowStart: noon, WindowEnd: noon.AddDate(0, 0, 1), ExhaustedAt: &at, Late: true,
	}
	w := newWorld(t, daily(100), schema.Limit{Name: "each", Scope: "tenant+endpoint", Limit: 100, WindowSize: 3600})
	w.spend("acme", "a", 80, 0)
	_, err = w.lead(true)
	require.NoError(t, err)
	for _, n := range append(w.events, full) {
		text, err := json.Marshal(n)
		require.NoError(t, err)
		value, err := jsonschema.UnmarshalJSON(strings.NewReader(string(text)))
		if err == nil {
			err = published.Validate(value)
		}
		assert.NoError(t, err, "%s", text)
	}
	assert.Len(t, w.events, 2)
}

func TestTheIDOfANoticeNamesItsTenantPolicyEndpointWindowAndThreshold(t *testing.T) {
	n := quota.Notice{Tenant: "acme", Policy: "daily", Threshold: 80, Limit: 100, Used: 85, WindowStart: noon}
	ids := map[string]bool{n.ID(): true}
	for _, change := range []func(*quota.Notice){
		func(n *quota.Notice) { n.Tenant = "globex" },
		func(n *quota.Notice) { n.Policy = "hourly" },
		func(n *quota.Notice) { n.Endpoint = "a" },
		func(n *quota.Notice) { n.WindowStart = noon.Add(time.Hour) },
		func(n *quota.Notice) { n.WindowEnd = noon.Add(time.Hour) },
		func(n *quota.Notice) { n.Threshold = 100 },
	} {
		other := n
		change(&other)
		ids[other.ID()] = true
	}
	same := n
	same.Used, same.Limit, same.Late = 99, 110, true
	if len(ids) != 7 || same.ID() != n.ID() {
		t.Errorf("the ids are %v and %s", ids, same.ID())
	}
}
