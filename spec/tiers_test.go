package spec

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/browser"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/freeport"
)

// plans are three tiers without a row in the database, two of which call their limit by one name. A header names the
// tier of a consumer without a tag. The window is a year: none ends during a spec.
const plans = `trusted_headers: [X-Tier], tier_from: [consumer.tag.tier, header.X-Tier], default_tier: essentials, tiers: [
	{name: essentials, limits: [
		{name: daily, scope: tenant, limit: 20, window_size: 31536000, algorithm: fixed_window}]},
	{name: enterprise, limits: [
		{name: daily, scope: tenant, limit: 1000, window_size: 31536000, algorithm: fixed_window}]},
	{name: unlimited}]`

// planned is a plane with a node and a process that serves API and portal.
type planned struct {
	*plane
	*api
	browser *browser.Browser
	metrics string // of the node
	node    *node
}

// replace starts the node with another decK file.
func (p *planned) replace(text string) {
	p.plane.t.Helper()
	p.metrics = freeport.Address(p.plane.t)
	p.node = start(p.plane.t, text, serverWith("-database", p.dsn, "-snapshot-dir", "off",
		"-metrics-listen", p.metrics, "-node-name", "edge"))
}

// spend sends requests of a consumer, and returns the limit in the headers of the last answer.
func (p *planned) spend(consumer string, requests int, headers ...string) (limit string) {
	p.plane.t.Helper()
	for range requests {
		a := p.node.get("/records", append([]string{"apikey", consumer}, headers...)...)
		if limit = a.Header.Get("X-RateLimit-Limit"); a.Status != http.StatusOK {
			p.plane.t.Fatalf("%s: %+v", consumer, a)
		}
	}
	return limit
}

// plan is what a door says of the plan of a tenant.
type plan struct {
	Tier   string `json:"tier"`
	Source string `json:"tier_source"`
	Limits []struct {
		Limit int64 `json:"limit"`
	} `json:"limits"`
	Items []struct {
		Limit int64 `json:"limit"`
	} `json:"items"`
	Limit  int64                    `json:"limit"`
	Bounds []struct{ Limit string } `json:"bounds"`
}

func (p *planned) read(text string) (found plan) {
	p.plane.t.Helper()
	if err := json.Unmarshal([]byte(text), &found); err != nil {
		p.plane.t.Fatalf("%v: %s", err, text)
	}
	return found
}

// doors returns what each door says of a tenant: its tier with the source of that, and the limit, if there is one.
func (p *planned) doors(org string) map[string]string {
	p.plane.t.Helper()
	said := map[string]string{}
	for name, path := range map[string]string{"limits in force": "/ratelimit/policies", "usage": "/ratelimit/usage"} {
		a, err := p.send(http.MethodGet, "/v1/orgs/"+org+path, "")
		require.NoError(p.plane.t, err)
		found := p.read(a.Body)
		said[name] = found.Tier + " " + found.Source
		for _, l := range append(found.Limits, found.Items...) {
			said[name] += fmt.Sprint(" ", l.Limit)
		}
	}
	a, err := p.send(http.MethodPost, "/v1/ratelimit/check", fmt.Sprintf(`{"org_id":%q,"dry_run":true}`, org))
	require.NoError(p.plane.t, err)
	found := p.read(a.Body)
	if said["decision API"] = found.Tier + " " + found.Source; found.Limit > 0 {
		said["decision API"] += fmt.Sprint(" ", found.Limit)
	}
	found = p.read(p.operate("explain", "--tenant", org, "--config", p.deck, "--plugin-route", "records", "-o", "json"))
	said["explain"] = found.Tier + " " + found.Source
	for _, b := range found.Bounds {
		quantity, _, _ := strings.Cut(b.Limit, " ")
		said["explain"] += " " + quantity
	}
	return said
}

// agree waits until all doors say the same of a tenant.
func (p *planned) agree(org, want string) {
	p.plane.t.Helper()
	var last map[string]string
	defer func() {
		if p.plane.t.Failed() {
			p.plane.t.Logf("the doors say of %s: %v", org, last)
		}
	}()
	await.That(p.plane.t, org+" to be on "+want+" at every door", func() bool {
		last = p.doors(org)
		for _, said := range last {
			if said != want {
				return false
			}
		}
		return true
	})
}

// page returns the text of the page with the plan of a tenant, as it reads it.
func (p *planned) page(t *testing.T, org string) string {
	t.Helper()
	secret := p.token(org+"-portal", "tenant:"+org)
	tab := p.browser.Tab(t, browser.Desktop)
	tab.Open(p.url + "/portal/")
	tab.Fill("#token", secret)
	tab.Click("main form button")
	return tab.Text("main")
}

func TestEveryDoorNamesThePlanByWhichNodesDecide(t *testing.T) {
	t.Parallel()
	p := &planned{plane: planeOf(t, plans)}
	p.replace(deck(p.config))
	p.api = p.serve("--keeper-database", p.dsn)
	p.browser = browser.Start(t)

	// The tags of consumers, in the file and in requests.
	for consumer, limit := range map[string]string{"alice": "1000", "beth": "20", "gus": ""} {
		if got := p.spend(consumer, 17); got != limit {
			t.Errorf("Kong says %s of %s, want %s", got, consumer, limit)
		}
	}
	p.agree("acme", "enterprise consumer.tag.tier 1000")
	p.agree("beta", "essentials consumer.tag.tier 20")
	p.agree("gamma", "unlimited consumer.tag.tier")
	var notices []struct {
		Org       string `json:"org_id"`
		Tier      string
		Threshold int
	}
	await.That(t, "a notice of beta", func() bool {
		text := p.operate("usage", "notices", "--last", "1h", "-o", "json")
		require.NoError(t, json.Unmarshal([]byte(text), &notices))
		return len(notices) > 0 && notices[0].Threshold == 80
	})
	if n := notices[0]; len(notices) != 1 || n.Org != "beta" || n.Tier != "essentials" {
		t.Errorf("acme has used 17 of 1000, and beta 17 of 20: the notices are %+v", notices)
	}
	near := p.operate("usage", "near-limit", "--config", p.deck, "--plugin-route", "records")
	if strings.Contains(near, "acme") || strings.Count(near, "beta") != 1 {
		t.Errorf("near a limit are\n%s", near)
	}
	if text := p.page(t, "acme"); !strings.Contains(text, "Your plan\nenterprise\n") ||
		!strings.Contains(text, "983 left of 1,000") {
		t.Errorf("acme reads %s", text)
	}
	if text := p.page(t, "hooli"); !strings.Contains(text, "Your plan\nNot known yet\n") {
		t.Errorf("a tenant that was never seen reads %s", text)
	}

	// What beta has used until now is looked at by the limit until now.
	await.That(t, "the usage of beta to be looked at", func() bool {
		return p.number(`SELECT coalesce(sum(admitted), 0)::bigint FROM rate_limiter.usage_minutes
			JOIN rate_limiter.usage_names n ON n.id = tenant JOIN rate_limiter.usage_state ON changed_since IS NULL
			WHERE n.name = 'beta' AND policy IN (SELECT id FROM rate_limiter.usage_names WHERE name = '')`) == 17
	})

	// A tag changes in Kong, and not in the file of the process. What was spent stays spent.
	p.replace(strings.Replace(deck(p.config), `["tier:essentials"]`, `["tier:enterprise"]`, 1))
	if got := p.spend("beth", 4); got != "1000" {
		t.Errorf("after the change Kong says %s of beta", got)
	}
	p.agree("beta", "enterprise consumer.tag.tier 1000")
	if text := p.page(t, "beta"); !strings.Contains(text, "Your plan\nenterprise\n") ||
		!strings.Contains(text, "979 left of 1,000") {
		t.Errorf("beta reads %s", text)
	}
	if all := p.operate("usage", "notices", "beta", "--last", "1h"); strings.Count(all, "daily") != 1 {
		t.Errorf("beta has used 21 of 1000: the notices are\n%s", all)
	}
	const counted = `mode="enforce",org_id="beta",result="allowed",tier="enterprise"}`
	if _, metrics := read(p.metrics, "/metrics"); !strings.Contains(metrics, counted) {
		t.Errorf("the metrics of the node do not have %s:\n%s", counted, metrics)
	}
}

func TestATierInAHeaderIsShownAndChoosesNothingElsewhere(t *testing.T) {
	t.Parallel()
	p := &planned{plane: planeOf(t, plans)}
	p.replace(strings.Replace(deck(p.config), `tags: ["tier:internal"]`, `tags: []`, 1)) // ida's, in Kong alone
	p.api = p.serve("--keeper-database", p.dsn)
	if got := p.spend("ida", 2, "X-Tier", "enterprise"); got != "1000" {
		t.Fatalf("Kong says %s, want what the header says", got)
	}
	var said map[string]string
	await.That(t, "the pages to show the tier of the header", func() bool {
		said = p.doors("ops")
		return said["limits in force"] == "enterprise header.X-Tier 1000"
	})
	if !strings.HasPrefix(said["decision API"], "essentials ") || !strings.HasSuffix(said["decision API"], " 20") {
		t.Errorf("a header chose %s at the decision API", said["decision API"])
	}
}
