package api_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

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
	for o, wrong := range p.world.store.EachPolicy(p.Context(), rows.PolicyFilter{}) {
		err = errors.Join(err, wrong)
		inForce.Policies = append(inForce.Policies, policy.PolicyRow{ID: o.ID, Policy: o.Policy})
	}
	require.NoError(p, err)
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
