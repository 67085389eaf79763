package portal

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	chromium "github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/browser"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/policysync"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// openBusy starts a portal over a month of requests of eleven tenants, with waves by day, warnings and denials.
func openBusy(t *testing.T, edit func(*Options, *api.Server)) *realWorld {
	t.Helper()
	pool := pgtest.Pool(t, pgtest.Shared(t).Database(t))
	exec := func(sql string, args ...any) { pgtest.Exec(t, pool, sql, args...) }
	exec(`INSERT INTO rate_limiter.tiers (name) VALUES ('basic'), ('pro'), ('enterprise')`)
	exec(`INSERT INTO rate_limiter.usage_names (name) SELECT unnest(ARRAY['', 'none', 'none2', 'GET /v1/records', 'acme',
		'globex', 'initech', 'umbrella', 'hooli', 'stark-industries', 'wayne-enterprises', 'cyberdyne-systems', 'tyrell',
		'soylent', 'wonka-industries'])`)
	exec(`INSERT INTO rate_limiter.tenants (id, tier) SELECT name, (ARRAY['basic', 'pro', 'enterprise'])[1 + id % 3]
		FROM rate_limiter.usage_names WHERE id > 4 AND id % 4 > 0`)
	exec(`INSERT INTO rate_limiter.overrides (kind, tenant, policy, factor, reason, expires_at, author, starts_at, source)
		VALUES ('multiplier', 'acme', 'minute', 1500, 'launch week', now() + interval '2 hours', 'ann',
			now() - interval '5 hours', 'scheduled')`)
	exec(`INSERT INTO rate_limiter.overrides (kind, tenant, policy, "limit", reason, permanent, author)
		VALUES ('custom_limit', 'globex', 'daily', 500000, 'a contract', true, 'ann')`)
	f := &filler{TB: t, pool: pool}
	f.fillUnrecorded(statement{`UPDATE rate_limiter.audit SET at = now() - interval '4 hours'`, nil})
	exec(`UPDATE rate_limiter.usage_state SET hours_until = date_trunc('day', now() - interval '31 days', 'UTC'),
		days_until = date_trunc('day', now() - interval '31 days', 'UTC')`)
	exec(`SELECT rate_limiter.keep_usage_partitions()`)
	exec(`INSERT INTO rate_limiter.usage_names (name) SELECT p || '/default/' || t FROM unnest(ARRAY['daily', 'minute']) p,
		unnest(ARRAY['free', 'basic', 'pro', 'enterprise']) t`)
	const wave = ` (1.2 + sin(extract(epoch FROM now() - at) / 13751 + 4) + (hashtext(at::text || n.id) & 255) / 850.0) *
		(22 - n.id) * 15 `
	for _, c := range []struct {
		table, step, from, to string
		scale                 int
	}{
		{"minutes", "1 minute", "now() - interval '25 hours'", "now()", 1},
		{"hours", "1 hour", "now() - interval '9 days'", "now() - interval '1 hour'", 60},
		{"days", "1 day", "now() - interval '31 days'", "now() - interval '1 day'", 1440},
	} {
		late := map[bool]string{true: ", late", false: ""}[c.table == "days"]
		exec(fmt.Sprintf(`INSERT INTO rate_limiter.usage_%[1]s (at, tenant, endpoint, policy, admitted, soft, denied,
				shadow_denied, cost, remaining_min%[7]s)
			SELECT at, n.id, 4, p.id, v, CASE WHEN n.id %% 3 = 0 THEN v / 12 ELSE 0 END, CASE WHEN n.id %% 2 = 1 THEN
				greatest(0, v - 375 * %[4]d) / 3 ELSE 0 END, 0, CASE WHEN p.id = 1 THEN 0 ELSE v END,
				CASE WHEN p.id > 1 THEN CASE WHEN p.name LIKE 'minute%%' THEN n.id * 90 ELSE n.id * 9000 END END%[8]s
			FROM (SELECT date_trunc('%[6]s', g, 'UTC') AS at FROM generate_series(%[3]s, %[9]s, interval '%[2]s') g) g,
				rate_limiter.usage_names n, LATERAL (SELECT (`+wave+`* %[4]d)::bigint AS v) v,
				rate_limiter.usage_names p WHERE n.id BETWEEN 5 AND 15 AND (p.name = '' OR split_part(p.name, '/', 3) = coalesce(
					(SELECT tier FROM rate_limiter.tenants t WHERE t.id = n.name), 'free')) %[5]s`,
			c.table, c.step, c.from, c.scale, "ON CONFLICT DO NOTHING", strings.Fields(c.step)[1], late,
			map[bool]string{true: ", false", false: ""}[late != ""], c.to))
	}
	exec(`UPDATE rate_limiter.usage_state SET hours_until = date_trunc('hour', now()), days_until = date_trunc('day', now(), 'UTC')`)
	exec(`INSERT INTO rate_limiter.quota_notices (noticed_at, tenant, policy, endpoint, threshold, "limit", used, window_start,
			window_end, exhausted_at, late)
		SELECT now(), 'acme', 'daily', '', 80, 600000, 491000, date_trunc('day', now()), now() + interval '5 hours',
			now() + interval '72 minutes', false`)
	exec(`INSERT INTO rate_limiter.recent_denials (login, node, event, at, tenant, endpoint, policy, scope, "limit",
			window_size, reason, shadow, count, tenant_count, "user", ip, retry_after, request_ids)
		SELECT 'l', 'n1', 'e' || i, now() - (hashtext(i::text) & 1023) / 1024.0 *
			CASE WHEN i % 3 = 0 THEN interval '23 hours' ELSE interval '6 hours' END,
			(ARRAY['acme', 'globex', 'initech', 'acme', 'hooli'])[1 + i % 5],
			(ARRAY['GET /v1/records', 'POST /v1/records/{id}/attachments',
			''])[1 + i % 3], p.policy, CASE WHEN p.policy = '' THEN '' ELSE 'tenant' END,
			p.most, p.size, p.reason, i % 11 = 0, 1 + i % 9,
			1 + i % 9, '', '', 20, ARRAY[lpad(to_hex(i), 32, '0')]
		FROM generate_series(1, 900) i, LATERAL (SELECT (ARRAY['minute', 'daily', ''])[1 + i % 3] AS policy,
			(ARRAY[6000, 600000, NULL])[1 + i % 3] AS most, (ARRAY[60, 86400, NULL])[1 + i % 3] AS size,
			(ARRAY['quota', 'quota', 'others'])[1 + i % 3] AS reason) p`)
	var version int64
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT version FROM rate_limiter.version`).Scan(&version))
	for n := range 3 {
		r := policysync.Report{Node: fmt.Sprintf("edge-%d/ABCD", n), Version: version, Source: policysync.FromPostgres}
		r.Took = []int64{8: 1200, 900, 150, 30, 4}
		require.NoError(t, r.Write(t.Context(), pool))
	}
	tier := func(name string, most int64) schema.Tier {
		return schema.Tier{Name: name, Limits: []schema.Limit{
			{Name: "daily", Scope: "tenant", Limit: most * 100, WindowSize: 86400, Algorithm: "fixed_window"},
			{Name: "minute", Scope: "tenant", Limit: most, WindowSize: 60},
		}}
	}
	list := rowsOf(t, rows.New(pool))
	for _, tier := range []string{"basic", "pro", "enterprise"} {
		list.Tiers = append(list.Tiers, policy.TierRow{Name: tier, Title: "Team plan", PriceText: "$499 a month"})
	}
	return overDatabase(t, pool, list, setting{
		config: schema.Config{
			DefaultTier: "free", OnMissingUser: "skip", TenantFrom: []string{"consumer.custom_id"},
			Tiers: []schema.Tier{tier("free", 4000), tier("basic", 4500), tier("pro", 5000), tier("enterprise", 6000)},
		},
		now: time.Now(), edit: edit,
	})
}

func TestGraphsAnswerToThePointerAndPagesKeepTheirRange(t *testing.T) {
	t.Parallel()
	w := openBusy(t, nil)
	b := chromium.Start(t)
	for _, screen := range screens[1:3] { // dark, and a phone
		tab := b.Tab(t, screen)
		tab.Open(w.server.URL + "/portal/")
		tab.Fill("#token", adminSecret)
		require.EqualValues(t, http.StatusOK, tab.Click("main form button"))
		require.EqualValues(t, http.StatusOK, tab.Open(w.server.URL+"/portal/tenants/acme?range=7d"))
		graphIsAlive(t, tab)
		for _, to := range []string{"/portal/audit", "/portal/?"} { // also by a page without a range
			tab.Open(chromium.Eval[string](tab, `document.querySelector('nav a[href^="`+to+`"]').href`))
		}
		assert.Equal(t, "Week", chromium.Eval[string](tab, `document.querySelector(".ranges [aria-current]").textContent`))
	}
}

func TestATenantReadsWhyItWasDeniedAndCopiesASecretOnEachScreen(t *testing.T) {
	t.Parallel()
	w := openBusy(t, func(o *Options, _ *api.Server) {
		branded(t, "#c0392b")(o)
		o.Brand.Name = "Acme APIs"
	})
	for range 14 {
		w.write("POST", "/v1/ratelimit/check", `{"org_id":"acme","endpoint":"GET /v1/records"}`)
	}
	tab := chromium.Start(t).Tab(t, screens[0])
	tab.Open(w.server.URL + "/portal/")
	tab.Fill("#token", acmeSecret)
	require.EqualValues(t, http.StatusOK, tab.Click("main form button"))
	checkScreens(t, tab, view{"", "plan"})
	tab.Open(w.server.URL + "/portal/org/denials")
	tab.Fill("#request_id", fmt.Sprintf("%032x", 30)) // acme's
	require.EqualValues(t, http.StatusOK, tab.Click("main form button"))
	assert.Contains(t, tab.Text("main"), "What would have admitted it")
	checkScreens(t, tab, view{"", "why"})
	tab.Open(w.server.URL + "/portal/org/tokens")
	tab.Fill("#name", "ci")
	require.EqualValues(t, http.StatusOK, tab.Click(`form[action="/portal/org/new/tokens"] button`))
	copied := chromium.Eval[string](tab, `(async () => {
		const button = document.querySelector("[data-copy]");
		button.click();
		await new Promise((done) => setTimeout(done, 200));
		return button.textContent + getSelection();
	})()`)
	assert.Contains(t, copied, "Copied")
	checkScreens(t, tab, view{"", "secret"})
}

// graphIsAlive points at the graph of acme's week, which shows the values of its table there, and the override.
func graphIsAlive(t *testing.T, tab *chromium.Tab) {
	t.Helper()
	shown := chromium.Eval[string](tab, `(() => {
		const over = document.querySelector(".plot .u-over"), at = over.getBoundingClientRect();
		over.dispatchEvent(new MouseEvent("mousemove", { clientX: at.right - 3, clientY: at.top + 20, bubbles: true }));
		return new Promise((done) => setTimeout(() => done(over.querySelector(".tip").innerText), 100));
	})()`)
	last := chromium.Eval[string](tab, `document.querySelector("figure tbody tr:last-child td").textContent`)
	for _, text := range []string{last, "Admitted", "Denied", "override 1: minute × 1.5"} {
		assert.Contains(t, shown, text)
	}
	inked := chromium.Eval[bool](tab, `(() => {
		const c = document.querySelector(".plot canvas"), colors = new Set();
		const { data } = c.getContext("2d").getImageData(0, 0, c.width, c.height);
		for (let i = 0; i < data.length; i += 4) if (data[i + 3] === 255) colors.add(data.slice(i, i + 3).join());
		return colors.size > 2;
	})()`)
	assert.True(t, inked, "the graph has bars in their colors")
}
