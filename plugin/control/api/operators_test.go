package api_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

// What the tests of the operations for operators add to those of all.
func init() {
	for id, s := range map[string]sample{
		"create-token": {body: `{"name":"july","role":"viewer","reason":"a test"}`}, "revoke-token": {query: "?reason=over"},
		"put-tier": {body: `{"description":"the best"}`}, "delete-tier": {query: "?reason=over"},
		"delete-org": {query: "?reason=over"},
	} {
		samples[id], may[id] = s, "y...???"
	}
	for _, id := range []string{"list-tokens", "list-ended-overrides"} {
		may[id] = "yy..???"
	}
}

const tokens = "/v1/ratelimit/tokens"

func TestARowIsWrittenWithoutAReadByOverwriteOrItsRevision(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.want(w.as("PUT", policies+"?overwrite=true", daily), http.StatusCreated)
	smaller := strings.Replace(daily, "1000", "5", 1)
	w.want(w.as("PUT", policies, smaller), http.StatusPreconditionRequired)
	w.want(w.as("PUT", policies+"?overwrite=true", smaller), http.StatusOK)
	w.want(w.as("PUT", policies+"?revision=1", daily), http.StatusPreconditionFailed)
	w.want(w.as("DELETE", policies+"/1?reason=over&revision=2", ""), http.StatusOK)
}

func TestTheTenantsOfAbuseHavePages(t *testing.T) {
	t.Parallel()
	w := open(t)
	onLadder(w)
	var seen []string
	for next := ""; ; {
		answer := w.want(w.as("GET", abuseList+"?limit=1&cursor="+next, ""), http.StatusOK)
		page := read[answers.Page[rows.AbuseState]](w, answer)
		for _, row := range page.Items {
			seen = append(seen, row.Tenant)
		}
		if next = page.NextCursor; next == "" {
			break
		}
	}
	if got := strings.Join(seen, ", "); got != "acme, globex" {
		t.Errorf("the pages have %s", got)
	}
}
