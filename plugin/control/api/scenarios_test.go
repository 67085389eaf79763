package api_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// scenarios ask for the answers of an operation that everyState does not lead to, each on a server of its own.
var scenarios = map[string]func(*contract, operation){}

// conditions are the headers of the requests that everyState sends.
var conditions = [][]string{nil, {"If-None-Match", "*"}, {"If-Match", `"1-7"`}, {"If-Match", "*"}, nil}

// everyState asks operations for their answers without rows, with one of each kind, and after those have ended.
func everyState(c *contract, operations ...operation) {
	c.Helper()
	for _, enter := range []func(*world){func(*world) {}, (*world).fill, (*world).end} {
		enter(c.world)
		for _, headers := range conditions {
			for _, o := range operations {
				c.check(o, c.do(o.call(admin).with(headers...)))
			}
		}
	}
}

// fill makes a row of each kind, other than the samples write. What is there already stays or is overwritten.
func (w *world) fill() {
	w.Helper()
	for _, row := range [][3]string{
		{"PUT", policies + "?overwrite=true", strings.Replace(daily, "1000", "5", 1)},
		{"POST", candidates, samples["create-candidate"].body},
		{"PUT", july + "/policies", strings.Replace(daily, "1000", "500", 1)},
		{"POST", overrides, `{"kind":"ban","reason":"other","permanent":true}`},
		{"POST", generalOverrides, samples["create-general-override"].body},
		{"PUT", acmePath + "?overwrite=true", `{}`},
		{"PUT", "/v1/ratelimit/tiers/july?overwrite=true", `{}`},
		{"PUT", costs + "?overwrite=true", strings.Replace(ofExports, "50", "5", 1)},
		{"PUT", prices + "?overwrite=true", strings.Replace(coming, "10", "5", 1)},
		{"POST", webhooks, hooked},
		{"POST", generalWebhooks, hooked},
		{"POST", tokens, samples["create-token"].body},
		{"POST", orgTokens, samples["create-org-token"].body},
	} {
		if a := w.as(row[0], row[1], row[2]); a.Code >= 400 && a.Code != http.StatusConflict {
			w.Errorf("%s %s: %d %s", row[0], row[1], a.Code, a.Body)
		}
	}
	onLadder(w)
	w.identified()
	w.denied()
	w.enforces("edge-1", 0)
}

// end ends what fill has made.
func (w *world) end() {
	w.Helper()
	w.as("POST", july+"/promote", why)
	w.as("POST", webhooks+"/1/disable", `{}`)
	w.as("POST", generalWebhooks+"/2/disable", `{}`)
	w.expireOverrides()
	w.silences("edge-1")
}

// unlimited makes a server on an empty database, with a config that limits nothing, so that no list has an element.
func unlimited(t *testing.T) *world {
	t.Helper()
	w, config := equipped(t), plan()
	config.Tiers, config.Global = []schema.Tier{{Name: config.DefaultTier}}, schema.Global{}
	ruled(t, w.server.Decider, config, policy.Rows{})
	return w
}

func TestEveryAnswerMatchesItsDescription(t *testing.T) {
	t.Parallel()
	c := newContract(equipped(t))
	var reads []operation
	for _, o := range operations(c.world) {
		everyAnswer(c, o)
		if o.method == http.MethodGet {
			reads = append(reads, o)
			continue
		}
		everyState(c.on(equipped(t)), o)
		if scenario := scenarios[o.id]; scenario != nil {
			scenario(c.on(equipped(t)), o)
		}
	}
	everyState(c.on(equipped(t)), reads...)
	everyState(c.on(unlimited(t)), reads...) // lists are empty and not null
	limitedAnswers(c)
	broken := c.on(open(t))
	broken.pool.Close()
	for _, o := range operations(c.world) {
		broken.check(o, broken.do(o.call(admin).with("If-Match", "*")))
	}
	c.wantAll()
}

// Scripts join answers and records by these fields: policy is a name,
// policy_id the id of a row, and policy_version the version of all rows. A
// decision names limits of the config by policy_ref too.
func TestALimitIsNamedAlikeInEveryAnswer(t *testing.T) {
	t.Parallel()
	rows := enterprise()
	rows.Policies = []policy.PolicyRow{{ID: 41, Policy: schema.Policy{Tenant: "acme", Limit: schema.Limit{
		Name: "rowed", Scope: "tenant", Limit: 1, WindowSize: 86400,
	}}}}
	p := planning(t, platform(), rows)
	for _, c := range []call{
		{admin, "POST", "/v1/ratelimit/check", `{"org_id":"acme"}`, nil},
		{admin, "POST", "/v1/ratelimit/check/batch", `{"checks":[{"org_id":"acme"}]}`, nil},
		{admin, "GET", "/v1/orgs/acme/ratelimit/policies", "", nil},
		{admin, "GET", "/v1/orgs/acme/ratelimit/usage", "", nil},
	} {
		body := p.want(p.do(c), http.StatusOK).Body.String()
		for _, want := range []string{`"policy":"rowed"`, `"policy":"daily"`, `"policy_id":41`, `"policy_version":7`} {
			if !strings.Contains(body, want) {
				t.Errorf("%s %s has no %s: %s", c.method, c.path, want, body)
			}
		}
		decided := strings.HasPrefix(c.path, "/v1/ratelimit/check")
		for _, ref := range []string{`"policy_ref":"rowed/#41"`, `"policy_ref":"daily/default/enterprise"`} {
			if decided && !strings.Contains(body, ref) {
				t.Errorf("%s has no %s: %s", c.path, ref, body)
			}
		}
		for _, not := range []string{`"policy_id":"`, `"policy_id":0`, `"row":`, `"policy_row"`} {
			if strings.Contains(body, not) {
				t.Errorf("%s %s has %s: %s", c.method, c.path, not, body)
			}
		}
	}
}
