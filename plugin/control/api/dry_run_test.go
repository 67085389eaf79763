package api_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

func TestADryRunAnswersAsTheWriteWouldAndChangesNothing(t *testing.T) {
	t.Parallel()
	w := open(t)
	openJuly(w)
	state := func() string {
		text := ""
		for _, path := range []string{
			policies, costs, "/v1/ratelimit/prices", "/v1/ratelimit/tiers", "/v1/orgs", candidates, july + "/diff",
			"/v1/ratelimit/overrides", "/v1/ratelimit/webhooks", "/v1/ratelimit/tokens", "/v1/ratelimit/audit",
		} {
			text += w.want(w.as("GET", path, ""), http.StatusOK).Body.String()
		}
		return text
	}
	before := state()
	for _, write := range [][3]string{
		{"PUT", policies + "/1?revision=1&dry_run=true", `{"tier":"gold","limit":7,"window":"1m"}`},
		{"POST", policies + "?dry_run=true", `{"tenant":"globex","limit":7,"window":"1m"}`},
		{"DELETE", policies + "/1?revision=1&dry_run=true&reason=r", ""},
		{"PUT", costs + "?dry_run=true&wait=1s", ofExports},
		{"PUT", "/v1/ratelimit/prices?dry_run=true", `{"model":"gpt-4o","prompt":"1","completion":"2"}`},
		{"PUT", "/v1/ratelimit/tiers/gold?dry_run=true", `{"description":"d"}`},
		{"PUT", "/v1/orgs/globex?dry_run=true", `{"tier":"gold"}`},
		{"POST", july + "/assign?dry_run=true", `{"percent":5,"reason":"r"}`},
		{"POST", july + "/promote?dry_run=true", why},
		{"DELETE", july + "?dry_run=true&reason=r", ""},
		{"POST", "/v1/orgs/globex/ratelimit/overrides?dry_run=true", `{"kind":"ban","permanent":true,"reason":"r"}`},
		{"POST", "/v1/ratelimit/webhooks?dry_run=true", `{"url":"https://example.com/hook"}`},
		{"POST", "/v1/ratelimit/tokens?dry_run=true", `{"name":"ci","role":"viewer","reason":"r"}`},
	} {
		if a := w.as(write[0], write[1], write[2], "Idempotency-Key", "key"); a.Code > 201 {
			t.Errorf("%s %s: %d %s", write[0], write[1], a.Code, a.Body)
		}
	}
	assert.Equal(t, before, state())
	tried := read[struct {
		Cost    rows.Cost
		Version int64
	}](w, w.want(w.as("PUT", costs+"?dry_run=true", ofExports), http.StatusCreated))
	if *tried.Cost.Cost.Cost != 50 || tried.Version != 0 {
		t.Errorf("a cost would be %+v", tried)
	}
	w.want(w.as("PUT", policies+"/1?revision=9&dry_run=true", daily), http.StatusPreconditionFailed)
	w.want(w.as("POST", policies+"?dry_run=true", daily), http.StatusConflict)
	w.want(w.as("POST", "/v1/ratelimit/webhooks/1/test?dry_run=true", why), http.StatusUnprocessableEntity)
}
