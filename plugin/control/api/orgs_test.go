package api_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/policytest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

const acmePath = "/v1/orgs/acme"

// orgWritten holds the answer to a write of an org.
type orgWritten struct {
	Org         rows.Tenant          `json:"org"`
	Version     int64                `json:"version"`
	Enforcement *answers.Enforcement `json:"enforcement"`
}

func TestAnOrgIsSetAndReadAgain(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.enforces("edge-1", 1)
	w.want(w.as("GET", acmePath, ""), http.StatusNotFound)
	a := w.want(w.as("PUT", acmePath+"?wait=1s", `{"tier":"enterprise","time_zone":"Europe/Berlin","reason":"they pay"}`),
		http.StatusCreated)
	made := read[orgWritten](w, a)
	want := rows.Tenant{Tenant: schema.Tenant{ID: "acme", Tier: "enterprise", TimeZone: "Europe/Berlin"}, Revision: 1}
	if made.Org != want || made.Version == 0 || made.Enforcement == nil || !made.Enforcement.Enforced ||
		a.Header().Get("Location") != acmePath {
		t.Errorf("made %s, want %+v", a.Body, want)
	}
	got := w.want(w.do(call{ofAcme, "GET", acmePath, "", nil}), http.StatusOK)
	if read[rows.Tenant](w, got) != want || got.Header().Get("ETag") != a.Header().Get("ETag") {
		t.Errorf("read %s with %s, want %+v", got.Body, got.Header().Get("ETag"), want)
	}
	w.want(w.as("GET", acmePath, "", "If-None-Match", "W/"+got.Header().Get("ETag")), http.StatusNotModified)
	// what is read can be written
	w.want(w.as("PUT", acmePath, got.Body.String(), "If-Match", got.Header().Get("ETag")), http.StatusOK)
	entries, err := w.store.Audit(t.Context(), rows.AuditFilter{Tenant: "acme"})
	if err != nil || len(entries) == 0 || entries[len(entries)-1].Actor != "token:ann" ||
		entries[len(entries)-1].Reason != "they pay" {
		t.Errorf("the audit has %+v (%v), want that ann did it because they pay", entries, err)
	}
}

func TestAllFaultsOfAnOrgAreListedWithTheirPaths(t *testing.T) {
	t.Parallel()
	w := open(t)
	for body, want := range map[string]string{
		`{"tier":7,"time_zone":"Europe/Atlantis","reason":" ","surprise":1}`: "body.reason body.surprise body.tier body.time_zone",
		`{"time_zone":"Local"}`:                           "body.time_zone",
		`{"time_zone":"../../etc/passwd"}`:                "body.time_zone",
		`{"tier":"` + strings.Repeat("ü", 33) + `"}`:      "body.tier",
		`{"tier":"a\u0000"}`:                              "body.tier",
		`{"time_zone":"` + strings.Repeat("x", 65) + `"}`: "body.time_zone",
	} {
		w.wantFaults(w.as("PUT", acmePath, body), want)
	}
}

// inForce returns the limits in force for acme.
func (p *planned) inForce(token, query string) answers.InForce {
	p.Helper()
	return read[answers.InForce](p.world, p.want(p.do(call{
		token, "GET", acmePath + "/ratelimit/policies" + query, "", nil,
	}), http.StatusOK))
}

// eventful returns rows with most kinds of limits and overrides.
func eventful() policy.Rows {
	rows := enterprise()
	rows.Policies = []policy.PolicyRow{
		{ID: 1, Policy: schema.Policy{Tenant: "acme", Limit: limitOf("daily", "", 2000)}},
		{ID: 2, Policy: schema.Policy{Tier: "enterprise", Limit: limitOf("extra", "GET /search", 30)}},
	}
	rows.Overrides = []policy.Override{
		policytest.Override(3, schema.Override{
			Kind: schema.KindMultiplier, Factor: 2000, Tenant: "acme", ExpiresAt: timeOf(tomorrow),
		}),
		policytest.Override(4, schema.Override{
			Kind: schema.KindCustomLimit, Policy: "daily", Limit: 99, Tenant: "acme", Endpoint: "POST /bulk",
		}),
		policytest.Override(5, schema.Override{Kind: schema.KindExempt, Tenant: "acme", Endpoint: "GET /free"}),
		policytest.Override(6,
			schema.Override{Kind: schema.KindBan, Tenant: "acme", User: "eve", ExpiresAt: timeOf(tomorrow)}),
		policytest.Override(7, schema.Override{Kind: schema.KindBan, IP: "192.0.2.1"}),
		policytest.Override(8, schema.Override{Kind: schema.KindMultiplier, Factor: 500, IP: "192.0.2.1", Tenant: "globex"}),
	}
	return rows
}

func TestLimitsInForceAreShownWithTheirOrigin(t *testing.T) {
	t.Parallel()
	p := planning(t, plan(), eventful())
	got := p.inForce(viewer, "")
	var summaries []string
	for _, l := range got.Limits {
		summaries = append(summaries, l.Policy+": "+l.Summary)
	}
	for _, e := range got.Exceptions {
		summaries = append(summaries, e.Verdict+": "+e.Summary)
	}
	until := timeOf(tomorrow).Format(time.RFC3339)
	doubled := ", changed by override 3 (multiplier, by ann: ticket 7) until " + until + "."
	want := []string{
		"daily: 4000 per 86400 s (token_bucket) per tenant, by policy 1 for this org" + doubled,
		"all: 5000 per 86400 s (token_bucket) in total, for all tenants in the plugin's config.",
		"extra: 60 per 86400 s (token_bucket) per tenant at GET /search, by policy 2 for tier enterprise" + doubled,
		"writes: 40 per 86400 s (token_bucket) per tenant at POST /records/{id}, the default of tier enterprise in the plugin's config" + doubled,
		"daily: 99 per 86400 s (token_bucket) per tenant, by policy 1 for this org, changed at POST /bulk by override 4 (custom_limit, by ann: ticket 7) for good.",
		"exempt: No limit applies at GET /free, by override 5 (exempt, by ann: ticket 7) for good.",
	}
	slices.Sort(summaries)
	slices.Sort(want)
	if !slices.Equal(summaries, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(summaries, "\n"), strings.Join(want, "\n"))
	}
	if got.Tier != "enterprise" || got.Source != "row" || got.Version != 7 || got.Namespace != "default" ||
		got.Summary != "acme is of tier enterprise (set for this org); 5 limits apply." {
		t.Errorf("%+v", got)
	}
	whys := map[string]string{}
	for _, x := range got.NotInForce {
		whys[x.Policy+" "+x.Source] = x.Why
	}
	if len(whys) != 2 || whys["daily config"] != "row 1 goes before it" ||
		!strings.Contains(whys["per-user config"], "counted per") {
		t.Errorf("not in force are %v", whys)
	}
}

func TestWhyAnOverrideIsInForceAgreesWithWhetherItApplies(t *testing.T) {
	t.Parallel()
	rows := enterprise()
	rows.Policies = []policy.PolicyRow{{ID: 2, Policy: schema.Policy{
		Tier: "enterprise", Limit: limitOf("extra", "GET /search", 30),
	}}}
	rows.Overrides = []policy.Override{
		policytest.Override(10, schema.Override{Kind: schema.KindCustomLimit, Policy: "extra", Limit: 7, Tenant: "acme"}),
		policytest.Override(1, schema.Override{Kind: schema.KindCustomLimit, Policy: "writes", Limit: 7, Tenant: "acme"}),
		policytest.Override(2, schema.Override{Kind: schema.KindCustomLimit, Policy: "all", Limit: 70, Tenant: "acme"}),
		policytest.Override(3, schema.Override{Kind: schema.KindCustomLimit, Policy: "daily", Limit: 70, Tenant: "acme"}),
		policytest.Override(4, schema.Override{Kind: schema.KindCustomLimit, Policy: "daily", Limit: 80, Tenant: "acme"}),
		policytest.Override(5,
			schema.Override{Kind: schema.KindMultiplier, Factor: 500, Tenant: "acme", ExpiresAt: timeOf(1)}),
		policytest.Override(6, schema.Override{Kind: schema.KindExempt, Tenant: "acme", Endpoint: "GET /free"}),
		policytest.Override(7, schema.Override{
			Kind: schema.KindCustomLimit, Policy: "writes", Limit: 9, Tenant: "acme", Endpoint: "* /*",
		}),
		policytest.Override(8, schema.Override{Kind: schema.KindCustomLimit, Policy: "none", Limit: 9, Tenant: "acme"}),
		policytest.Override(9, schema.Override{Kind: schema.KindExempt, Tenant: "acme", Endpoint: "GET /pages/{page}"}),
	}
	p := planning(t, plan(), rows)
	const exempt = "; at GET /free override 6 exempts the request; at GET /pages/{page} override 9 exempts the request"
	want := map[int64]string{
		1: "false override 7 goes before it: endpoint is more specific than tenant",
		2: "true it changes all" + exempt,
		3: "false on daily override 4 goes before it: it is younger" + exempt,
		4: "true it changes daily" + exempt, 5: "false it has expired", 6: "true it exempts the request",
		7: "true it changes writes",
		8: "false no limit of the request is one that it changes", 9: "true it exempts the request",
		10: "true it changes extra",
	}
	for token, all := range map[string]string{
		viewer: want[2], ofAcme: "true it changes a limit whose numbers are not shown" + exempt,
	} {
		want[2] = all
		for _, o := range p.inForce(token, "").Overrides {
			if got := fmt.Sprint(o.Applied, " ", o.Why); got != want[o.ID] {
				t.Errorf("%s: override %d: %s, want %s", token, o.ID, got, want[o.ID])
			}
		}
	}
}

func TestWhatIsInForceForOneKindOfRequests(t *testing.T) {
	t.Parallel()
	p := planning(t, plan(), eventful())
	if got := p.inForce(viewer, "?endpoint=GET+/free"); len(got.Limits) != 0 ||
		!strings.HasSuffix(got.Summary, "it is exempt from all limits.") {
		t.Errorf("%+v: want GET /free exempt", got)
	}
	got := p.inForce(viewer, "?endpoint=POST+/bulk&user=u_42")
	var limits []string
	for _, l := range got.Limits {
		limits = append(limits, fmt.Sprint(l.Policy, " ", l.Limit, " ", l.Source, " ", l.Match))
	}
	if want := []string{
		"daily 99 row tenant", "per-user 100 config tier enterprise", "all 5000 config global",
	}; !slices.Equal(limits, want) {
		t.Errorf("%q, want %q", limits, want)
	}
	if got := p.inForce(viewer, "?user=eve"); !strings.Contains(got.Summary, "it is banned until 2030-03-18T") ||
		len(got.Exceptions) == 0 || got.Exceptions[0].Override != 6 {
		t.Errorf("%+v: want eve banned", got)
	}
	for _, o := range p.inForce(viewer, "?ip=192.0.2.1").Overrides {
		if o.ID == 8 {
			t.Error("the override of another org is shown")
		}
	}
	long := strings.Repeat("x", 65)
	p.wantFaults(p.as("GET", acmePath+"/ratelimit/policies?endpoint=+/records&ip=here&tier="+long, ""),
		"query.endpoint query.ip query.tier")
}

func TestTheTierComesFromTheRowTheClaimOrTheDefault(t *testing.T) {
	t.Parallel()
	p := planning(t, plan(), enterprise())
	for path, want := range map[string]string{
		"acme/ratelimit/policies?tier=essentials":   "enterprise row",
		"globex/ratelimit/policies?tier=enterprise": "enterprise query",
		"globex/ratelimit/policies":                 "essentials assumed",
		"globex/ratelimit/usage?tier=enterprise":    "enterprise query",
		"globex/ratelimit/usage":                    "essentials assumed",
		"globex/ratelimit/usage?tier=bronze":        `essentials default: the request says "bronze", which is no tier`,
	} {
		a := p.want(p.as("GET", "/v1/orgs/"+path, ""), http.StatusOK)
		got := read[struct {
			Tier   string `json:"tier"`
			Source string `json:"tier_source"`
		}](p.world, a)
		if got.Tier+" "+got.Source != want {
			t.Errorf("%s: %s from %s, want %s", path, got.Tier, got.Source, want)
		}
	}
}
