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
	twice := func(c *contract, o operation) {
		c.check(o, c.do(o.call(admin)))
		c.check(o, c.do(o.call(admin)))
	}
	scenarios["create-token"] = twice
	scenarios["list-tokens"] = func(c *contract, o operation) {
		c.want(c.as("POST", tokens, samples["create-token"].body), http.StatusCreated)
		c.check(o, c.do(o.call(viewer)))
	}
	scenarios["revoke-token"] = func(c *contract, o operation) {
		c.want(c.as("POST", tokens, samples["create-token"].body), http.StatusCreated)
		twice(c, o)
	}
	scenarios["list-ended-overrides"] = func(c *contract, o operation) {
		c.want(c.as("POST", overrides, samples["create-override"].body), http.StatusCreated)
		c.want(c.as("DELETE", overrides+"/1?reason=over", ""), http.StatusOK)
		c.check(o, c.do(o.call(viewer)))
	}
	scenarios["put-tier"] = func(c *contract, o operation) {
		twice(c, o)
		c.check(o, c.do(o.call(admin).with("If-None-Match", "*")))
		other := o.call(admin)
		other.body = `{}`
		c.check(o, c.do(other))
	}
	for id, path := range map[string]string{"delete-tier": "/v1/ratelimit/tiers/july", "delete-org": "/v1/orgs/acme"} {
		scenarios[id] = func(c *contract, o operation) {
			c.check(o, c.do(o.call(admin)))
			c.want(c.as("PUT", path, `{}`), http.StatusCreated)
			c.check(o, c.do(o.call(admin)))
			c.check(o, c.do(o.call(admin).with("If-Match", `"other-7"`)))
			over := o.call(admin)
			over.path += "&overwrite=true"
			c.check(o, c.do(over))
		}
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
