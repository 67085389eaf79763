package api_test

import (
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/response"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// platform returns a plan in which the shared limits are tighter than acme's own, and recognizable by their
// numbers.
func platform() schema.Config {
	config := plan()
	config.Tiers[1].Limits = append(config.Tiers[1].Limits,
		schema.Limit{Name: "bulk", Scope: "endpoint", Endpoint: "POST /bulk", Limit: 3, WindowSize: 777_600},
		schema.Limit{Name: "address", Scope: "ip", Limit: 7123, WindowSize: 3600})
	config.Global.Limits = []schema.Limit{{
		Name: "all", Scope: "global", Limit: 4321, WindowSize: 654_321, Algorithm: "fixed_window", SoftThresholdPct: 1,
	}}
	return config.WithDefaults()
}

// numbers lists the numbers of the shared limits of platform.
var numbers = []string{"4321", "4320", "4319", "654321", "777600", "7123", "7122", "essentials"}

// instants matches times, which may have any digits: those of RFC 3339, and seconds since 1970.
var instants = regexp.MustCompile(`"\d{4}-\d\d-\d\dT[^"]*"|_epoch":\d+`)

func TestTheTokenOfAnOrgReadsNoNumberOfASharedLimit(t *testing.T) {
	t.Parallel()
	p := planning(t, platform(), enterprise())
	for _, c := range []struct{ method, path, body string }{
		{"POST", checkPath, `{"org_id":"acme"}`},
		{"POST", checkPath, `{"org_id":"acme","dry_run":true,"ip":"192.0.2.1"}`},
		{"POST", checkPath, `{"org_id":"acme","endpoint":"POST /bulk"}`},
		{"POST", checkPath, `{"org_id":"acme","endpoint":"POST /bulk"}`},
		{"POST", checkPath, `{"org_id":"acme","cost":900}`},
		{"POST", checkPath, `{"org_id":"acme","cost":5000,"dry_run":true}`},
		{"POST", batchPath, `{"checks":[{"org_id":"acme","endpoint":"POST /bulk"},{"org_id":"acme","endpoint":"POST /bulk"}]}`},
		{"GET", acmeUsage + "?user=u_42&ip=192.0.2.1", ""},
		{"GET", acmePath + "/ratelimit/policies?ip=192.0.2.1", ""},
		{"GET", acmePath + "/ratelimit/policies?endpoint=POST+/bulk", ""},
	} {
		a := p.want(p.do(call{ofAcme, c.method, c.path, c.body, nil}), http.StatusOK)
		for _, number := range numbers {
			if strings.Contains(instants.ReplaceAllString(a.Body.String(), ""), number) {
				t.Errorf("%s %s %s shows %s:\n%s", c.method, c.path, c.body, number, a.Body)
			}
		}
	}
}

func TestADecisionNamesTheSharedLimitThatDeniesAndShowsTheNumbersOfTheOrgsOwn(t *testing.T) {
	t.Parallel()
	p := planning(t, platform(), enterprise())
	var got api.Checked
	for range 4 {
		got = p.checks(ofAcme, `{"org_id":"acme","endpoint":"POST /bulk"}`)
		if got.Warning || got.Policy != "daily" || *got.Limit != 1000 {
			t.Errorf("%+v: want the numbers of daily and no warning of what all share", got)
		}
	}
	if got.Allowed || got.Reason != "limit_exceeded" || !slices.Equal(got.Violated,
		[]string{"bulk"}) || got.RetryAfter == 0 {
		t.Errorf("%+v: want it denied by bulk, with a time", got)
	}
	if all := p.checks(admin, `{"org_id":"acme","endpoint":"POST /bulk"}`); all.Policy != "bulk" || *all.Limit != 3 ||
		len(all.Statuses) != 4 {
		t.Errorf("an operator reads %+v, want bulk and its numbers", all)
	}
	if all := p.checks(admin, `{"org_id":"acme","dry_run":true,"cost":100}`); all.Policy != "daily" ||
		len(all.Statuses) != 3 {
		t.Errorf("an operator reads %+v, want the statuses of all limits", all)
	}
}

func TestTheTokenOfAnOrgReadsNoShadowOfASharedLimit(t *testing.T) {
	t.Parallel()
	config := plan()
	config.Global.Limits[0].Mode, config.Global.Limits[0].Limit = "shadow", 1
	p := planning(t, config.WithDefaults(), enterprise())
	p.checks(admin, `{"org_id":"acme"}`)
	if got := p.checks(ofAcme, `{"org_id":"acme"}`); got.Shadow || len(got.Violated) > 0 {
		t.Errorf("%+v: want nothing of the shadow that all share", got)
	}
	if got := p.checks(admin, `{"org_id":"acme"}`); !got.Shadow {
		t.Errorf("%+v: want an operator to read it", got)
	}
}

func TestShowSharedLimitsShowsThemToTheTokenOfAnOrg(t *testing.T) {
	t.Parallel()
	config := platform()
	p := planning(t, config, enterprise())
	config.ShowSharedLimits = true
	shown := &admit.Decider{Now: p.decider.Now, Buckets: p.decider.Buckets, Renderer: response.New(config, nil)}
	ruled(t, shown, config, enterprise())
	p.server.Decider = shown
	got := p.checks(ofAcme, `{"org_id":"acme","endpoint":"POST /bulk"}`)
	if got.Policy != "bulk" || *got.Limit != 3 || len(got.Statuses) != 3 {
		t.Errorf("%+v: want bulk, which binds, and its numbers", got)
	}
	names := []string{}
	for _, l := range p.inForce(ofAcme, "").Limits {
		names = append(names, l.Policy)
	}
	if !slices.Contains(names, "all") || slices.Contains(names, "address") {
		t.Errorf("in force are %q, want what all orgs share, and nothing of addresses", names)
	}
}

func TestTheTokenOfAnOrgCannotListTiers(t *testing.T) {
	t.Parallel()
	p := planning(t, plan(), policy.Rows{})
	for _, c := range []struct{ method, path, body string }{
		{"POST", checkPath, `{"org_id":"acme","tier":"%s","dry_run":true}`},
		{"POST", checkPath, `{"org_id":"acme","tier":"%s"}`},
		{"POST", batchPath, `{"checks":[{"org_id":"acme","tier":"%s","dry_run":true}]}`},
		{"GET", acmeUsage + "?tier=%s", ""},
		{"GET", acmePath + "/ratelimit/policies?tier=%s", ""},
	} {
		claiming := func(tier string) answer {
			named := strings.NewReplacer("%s", tier)
			return p.do(call{ofAcme, c.method, named.Replace(c.path), named.Replace(c.body), nil})
		}
		there, nowhere := claiming("enterprise"), claiming("nosuch")
		if a, b := p.want(there, http.StatusForbidden),
			p.want(nowhere, http.StatusForbidden); a.Body.String() != b.Body.String() ||
			!strings.Contains(a.Body.String(), "omit tier") {
			t.Errorf("%s %s: a tier that exists is answered %s, and another %s", c.method, c.path, a.Body, b.Body)
		}
		p.want(claiming("essentials"), http.StatusOK) // its own
	}
}

func TestAnOrgReadsThePublicNoteOfARowAndNeitherReasonNorAuthor(t *testing.T) {
	t.Parallel()
	w := open(t)
	const note = "agreed until the end of the year"
	a := w.want(w.as("POST", overrides, `{"kind":"ban","user":"eve","permanent":true,"reason":"hush: ticket 7","public_note":"`+note+`"}`), http.StatusCreated)
	at := a.Header().Get("Location")
	for token, whole := range map[string]bool{ofAcme: false, viewer: true} {
		for _, path := range []string{overrides, at} {
			a := w.want(w.do(call{token, "GET", path, "", nil}), http.StatusOK)
			if body := a.Body.String(); !strings.Contains(body, note) || strings.Contains(body, "hush") != whole ||
				strings.Contains(body, `"author":"token:ann"`) != whole {
				t.Errorf("%s reads %s, want the note, and reason and author: %v", token, body, whole)
			}
		}
	}
	w.want(w.as("DELETE", at+"?reason=over", ""), http.StatusOK)
	ended, err := w.store.EndedOverrides(t.Context(), rows.OverrideFilter{Tenant: "acme"})
	if err != nil || len(ended) != 1 || ended[0].PublicNote != note {
		t.Errorf("the history has %+v (%v), want one override with the note", ended, err)
	}
	a = w.want(w.as("POST", policies, `{"name":"daily","tenant":"acme","limit":5,"window_size":60,"public_note":"`+note+`"}`), http.StatusCreated)
	if p := read[policyWritten](w, a).Policy; p.PublicNote != note {
		t.Errorf("%+v: want the note", p)
	}
	for path, body := range map[string]string{
		policies:  `{"name":"b","tenant":"acme","limit":5,"window_size":60,"public_note":"two\nlines"}`,
		overrides: `{"kind":"ban","permanent":true,"reason":"r","public_note":"two\nlines"}`,
	} {
		w.wantFaults(w.as("POST", path, body), "body.public_note")
	}
}

func TestThePublicNoteIsShownWithEveryLimit(t *testing.T) {
	t.Parallel()
	rows := eventful()
	rows.Policies[0].PublicNote = "yours by contract"
	for i := range rows.Overrides {
		rows.Overrides[i].PublicNote = fmt.Sprint("note ", rows.Overrides[i].ID)
	}
	p := planning(t, plan(), rows)
	got := p.inForce(ofAcme, "")
	text := fmt.Sprint(got)
	for _, want := range []string{"yours by contract", "override 3 (multiplier: note 3)", "override 5 (exempt: note 5)"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in %s", want, text)
		}
	}
	if strings.Contains(text, "ticket 7") || got.Exceptions[0].PublicNote != "note 5" ||
		got.Overrides[0].PublicNote != "note 3" {
		t.Errorf("%+v: want the notes and no reason", got)
	}
	if status := p.checks(ofAcme, `{"org_id":"acme"}`).Statuses[0]; status.PublicNote != "yours by contract" {
		t.Errorf("%+v: want the note", status)
	}
	usage := read[answers.Usage](p.world, p.want(p.do(call{ofAcme, "GET", acmeUsage, "", nil}), http.StatusOK))
	if usage.Items[0].PublicNote != "yours by contract" {
		t.Errorf("%+v: want the note", usage.Items[0])
	}
}

// hushed is in every text that no token of an org reads: reasons, names of operators, shared limits, other orgs and
// other tiers.
const hushed = "hushed"

// hushedConfig returns a config whose shared limits and other tiers are named by the marker.
func hushedConfig() schema.Config {
	config := plan()
	config.Tiers = append(config.Tiers, schema.Tier{
		Name: "tier-" + hushed, Limits: []schema.Limit{limitOf(hushed+"-own", "", 7)},
	})
	shared := func(name, scope, endpoint string) schema.Limit {
		return schema.Limit{Name: name + "-" + hushed, Scope: scope, Endpoint: endpoint, Limit: 777_000, WindowSize: 3600}
	}
	own := &config.Tiers[1].Limits
	*own = append(*own, shared("bulk", "endpoint", "POST /bulk"), shared("address", "ip", ""))
	config.Global.Limits = []schema.Limit{shared("all", "global", "")}
	return config.WithDefaults()
}

// hush writes rows whose internal fields have the marker, and puts them in force.
func hush(p *planned, config schema.Config) {
	p.Helper()
	const why = `"permanent":true,"reason":"hushed: ticket 7"`
	for _, c := range [][2]string{
		{overrides, `{"kind":"ban","user":"eve","public_note":"call us",` + why + `}`},
		{overrides, `{"kind":"custom_limit","policy":"daily","limit":2000,` + why + `}`},
		{overrides, `{"kind":"multiplier","factor":2,"user":"ada",` + why + `}`},
		{overrides, `{"kind":"exempt","endpoint":"GET /free",` + why + `}`},
		{overrides, `{"kind":"ban","user":"old","starts_at":"2099-01-01T00:00:00Z",` + why + `}`},
		{"/v1/ratelimit/overrides", `{"kind":"ban","ip":"192.0.2.1",` + why + `}`},
		{"/v1/orgs/globex-hushed/ratelimit/overrides", `{"kind":"ban","ip":"192.0.2.2",` + why + `}`},
		{policies, `{"name":"daily","tenant":"acme","limit":3000,"window_size":86400,"public_note":"yours",` + because},
		{policies, `{"name":"x-hushed","tier":"enterprise","scope":"endpoint","limit":9,"window_size":60,` + because},
		{webhooks, `{"url":"https://example.com/a",` + because},
		{generalWebhooks, `{"url":"https://example.com/hushed",` + because},
		{"/v1/orgs/globex/ratelimit/webhooks", `{"url":"https://example.com/hushed",` + because},
		{candidates, `{"name":"july-hushed",` + because},
	} {
		p.want(p.as("POST", c[0], c[1]), http.StatusCreated)
	}
	p.want(p.as("PUT", "/v1/orgs/acme", `{"tier":"enterprise",`+because), http.StatusCreated)
	p.want(p.as("POST", webhooks+"/1/test", `{`+because), http.StatusOK)
	inForce := enterprise()
	written, err := p.world.store.Overrides(p.Context(), rows.OverrideFilter{})
	for _, o := range written {
		inForce.Overrides = append(inForce.Overrides, policy.Override{ID: o.ID, Override: o.Override})
	}
	policies, wrong := p.world.store.Policies(p.Context(), rows.PolicyFilter{})
	for _, o := range policies {
		inForce.Policies = append(inForce.Policies, policy.PolicyRow{ID: o.ID, Policy: o.Policy})
	}
	require.NoError(p, errors.Join(err, wrong))
	ruled(p.T, p.decider, config, inForce)
}

const because = `"reason":"hushed: ticket 7"}`

// queriesOf lists the queries of reads that show more than without.
var queriesOf = map[string][]string{
	"get-org-policies": {
		"?user=eve", "?user=ada", "?ip=192.0.2.1", "?credential=c1", "?endpoint=POST+/bulk", "?endpoint=GET+/free",
		"?limit=1",
	},
	"get-org-usage":           {"?user=eve", "?ip=192.0.2.1", "?endpoint=POST+/bulk", "?step=1d", "?group_by=endpoint"},
	"get-org-usage-history":   {"?group_by=endpoint", "?step=1m"},
	"list-overrides":          {"?expired=true", "?state=scheduled", "?user=eve"},
	"list-webhook-deliveries": {"?state=waiting"},
}

func TestNoReadOfAnOrgsTokenShowsWhatIsInternal(t *testing.T) {
	t.Parallel()
	config := hushedConfig()
	p := planning(t, config, policy.Rows{})
	hush(p, config)
	byOperators := 0
	for _, o := range operations(p.world) {
		if o.method != http.MethodGet || !o.secured {
			continue
		}
		for _, query := range append([]string{""}, queriesOf[o.id]...) {
			c := o.call(ofAcme)
			c.path += query
			a := p.do(c)
			// The rows are written by the token ann: her name is internal too.
			for _, internal := range []string{hushed, "token:ann", "ticket 7", "777000"} {
				if strings.Contains(a.Body.String(), internal) || strings.Contains(fmt.Sprint(a.Header()), internal) {
					t.Errorf("%s shows %q to the org: %s", c.path, internal, a.Body)
				}
			}
			c.token = viewer
			if strings.Contains(p.do(c).Body.String(), hushed) {
				byOperators++
			}
		}
	}
	if fewest := 15; byOperators < fewest {
		t.Errorf("operators read the marker in %d answers, want at least %d", byOperators, fewest)
	}
}
