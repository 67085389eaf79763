package spec

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
)

// scrape sends requests of acme until most of them are denied, and waits until the leader has unpacked them.
func (p *plane) scrape(n *node) {
	p.t.Helper()
	const requests = 400 // 60 are admitted
	for range requests {
		if a := n.get("/records", "apikey", "alice"); a.Status != http.StatusOK && a.Status != http.StatusTooManyRequests {
			p.t.Fatalf("a request is answered with %d", a.Status)
		}
	}
	await.That(p.t, "the denials are unpacked", func() bool {
		return p.number(`SELECT coalesce(sum(limited), 0)::bigint FROM rate_limiter.abuse_denials WHERE tenant = 'acme'`) ==
			requests-60
	})
}

// number returns a number from the database.
func (p *plane) number(query string) (n int64) {
	p.t.Helper()
	if err := p.rows.QueryRow(p.t.Context(), query).Scan(&n); err != nil {
		p.t.Fatalf("%s: %v", query, err)
	}
	return n
}

// prolong repeats what was scraped in each of the eight minutes before the last one that is scored, which lets a spec
// see minutes pass at once. No process may lead meanwhile.
func (p *plane) prolong() {
	p.t.Helper()
	const minutes = `generate_series(date_trunc('minute', clock_timestamp() - interval '20 s') - interval '8 minutes',
		date_trunc('minute', clock_timestamp() - interval '20 s') - interval '1 minute', interval '1 minute') at`
	p.write(`INSERT INTO rate_limiter.abuse_denials AS d
		SELECT at, 'acme', 340, 0, 0, s.users, s.addresses, s.credentials FROM ` + minutes + `, (
			SELECT users, addresses, credentials FROM rate_limiter.abuse_denials WHERE tenant = 'acme' LIMIT 1) s
		ON CONFLICT (at, tenant) DO UPDATE SET limited = excluded.limited`)
	p.write(`INSERT INTO rate_limiter.usage_minutes AS m
			(at, tenant, endpoint, policy, admitted, soft, denied, shadow_denied, cost)
		SELECT at, t.id, e.id, p.id, 60, 0, 340, 0, 0 FROM ` + minutes + `, rate_limiter.usage_names t,
			rate_limiter.usage_names e, rate_limiter.usage_names p WHERE t.name = 'acme' AND e.name = 'records' AND p.name = ''
		ON CONFLICT (at, tenant, endpoint, policy) DO UPDATE SET admitted = excluded.admitted`)
	p.write(`UPDATE rate_limiter.abuse_state SET scored_until = (SELECT min(at) FROM ` + minutes + `)`)
}

// restart ends the process that leads, and starts another one a few minutes of scraping later.
func (p *plane) restart(a *api, start func() *api) *api {
	p.t.Helper()
	require.NoError(p.t, a.terminate())
	p.prolong()
	return start()
}

// awaitPenalties waits until there are so many. It sends no requests meanwhile, which would be denied and count.
func (p *plane) awaitPenalties(want int64) {
	p.t.Helper()
	await.That(p.t, fmt.Sprintf("%d penalties", want), func() bool {
		return p.number(`SELECT count(*) FROM rate_limiter.overrides WHERE source = 'detector'`) == want
	})
}

// step returns the step and the mode of acme.
func (a *api) step() string {
	a.t.Helper()
	var got struct{ Step, Mode string }
	a.want(http.StatusOK, &got, http.MethodGet, "/v1/orgs/acme/ratelimit/abuse", "")
	return got.Step + " " + got.Mode
}

// hasLimit reports whether a node's answers have a limit.
func (n *node) hasLimit(limit int) bool {
	n.t.Helper()
	return strings.Contains(n.get("/records", "apikey", "alice").Header.Get("RateLimit-Policy"),
		fmt.Sprintf(`"year";q=%d;w=31536000`, limit))
}

func TestAScraperIsFlaggedInShadowPenalizedUnderEnforceAndForgiven(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	n := p.node("one", p.dsn)
	a := p.serve()
	p.scrape(n)

	a = p.restart(a, func() *api { return p.serve() })
	await.That(t, "the scraper is on a step in shadow", func() bool { return a.step() == "half shadow" })
	list := p.operate("abuse", "list")
	if !strings.Contains(list, "acme") || !strings.Contains(list, "were denied (85 %") {
		t.Errorf("abuse list shows\n%s", list)
	}
	if overrides := p.number(`SELECT count(*) FROM rate_limiter.overrides`); overrides != 0 || !n.hasLimit(60) {
		t.Errorf("shadow has made %d overrides; the limit of 60 holds: %v", overrides, n.hasLimit(60))
	}
	await.NoError(t, "the metrics have the scraper", func() error { // once all minutes are scored
		text := a.scrapeMetrics()
		if !strings.Contains(text, `rate_limiter_abuse_orgs{mode="shadow",step="half"} 1`) ||
			!strings.Contains(text, `rate_limiter_abuse_detection_flags_total{org_id="acme",reason="denied_share"}`) {
			return errors.New(text)
		}
		return nil
	})

	a = p.restart(a, func() *api { return p.serve("--abuse", "enforce") })
	p.awaitPenalties(1)
	await.That(t, "the penalty is enforced", func() bool { return n.hasLimit(30) })
	if text := p.operate("explain", "--config", p.deck, "--plugin-route", "records", "--tenant", "acme", "--tier",
		"enterprise"); !strings.Contains(text, "abuse detection: half of each limit, because") {
		t.Errorf("explain shows\n%s", text)
	}

	p.operate("abuse", "forgive", "acme", "--reason", "a test", "--wait=30s")
	await.That(t, "the penalty is over", func() bool { return n.hasLimit(60) })
	if got := a.step(); got != "none enforce" {
		t.Errorf("a forgiven tenant is on %s", got)
	}
	if entries := p.operate("audit", "--tenant", "acme"); !strings.Contains(entries, "forgive") ||
		!strings.Contains(entries, "abuse detector") {
		t.Errorf("the audit has\n%s", entries)
	}
}

// scrapeMetrics returns the metrics of the process.
func (a *api) scrapeMetrics() string {
	a.t.Helper()
	other := *a
	other.url = "http://" + a.metrics
	got, err := other.send(http.MethodGet, "/metrics", "")
	require.NoError(a.t, err)
	return got.Body
}
