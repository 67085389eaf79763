package api_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/node/routeconfig"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

const byTag, byHeader = "consumer.tag.tier", "header.X-Tier"

// sees stores that a node decided by a tier a time ago.
func (w *world) sees(org, tier, source string, ago time.Duration) {
	w.Helper()
	const sql = `WITH named AS (
			INSERT INTO rate_limiter.usage_names (name) VALUES ($1) ON CONFLICT (name) DO UPDATE SET name = $1 RETURNING id
		) INSERT INTO rate_limiter.tenant_tiers (tenant, namespace, tier, source, seen_at, since, stored_at)
		SELECT id, 'default', $2, $3, now() - $4::interval, now() - $4::interval, clock_timestamp()
		FROM named
		ON CONFLICT (tenant, namespace, tier, source) DO UPDATE
		SET seen_at = excluded.seen_at, stored_at = excluded.stored_at`
	pgtest.Exec(w, w.pool, sql, org, tier, source, ago)
}

// knowing gives the server the tiers of consumers in a file that was changed a time ago.
func (p *planned) knowing(ago time.Duration, consumers ...routeconfig.ConsumerTier) *api.Tiers {
	tiers := api.NewTiers(p.world.store, "default", consumers, time.Now().Add(-ago))
	p.server.Tiers = tiers
	return tiers
}

// tierOf returns the tier of an org, its source and the others, as the limits in force and the usage have them.
func (p *planned) tierOf(org string) string {
	p.Helper()
	require.NoError(p, p.server.Tiers.Refresh(p.Context(), ""))
	below := "/v1/orgs/" + org + "/ratelimit/"
	inForce := read[answers.InForce](p.world, p.want(p.as("GET", below+"policies", ""), http.StatusOK))
	used := read[answers.Usage](p.world, p.want(p.as("GET", below+"usage", ""), http.StatusOK))
	text := func(t answers.OrgTier) string {
		text := t.Tier + " " + t.Source
		for _, other := range t.Others {
			text += ", " + other.Tier + " " + other.Source
		}
		if t.SeenAt.IsZero() {
			text += ", unseen"
		}
		return text
	}
	if text(inForce.OrgTier) != text(used.OrgTier) {
		p.Errorf("limits in force have %s, usage %s", text(inForce.OrgTier), text(used.OrgTier))
	}
	if !strings.Contains(inForce.Summary, "tier "+inForce.Tier+" ") {
		p.Errorf("the summary is %q", inForce.Summary)
	}
	return text(inForce.OrgTier)
}

func TestATierIsTheRowsElseTheNewerOfFileAndNodesElseAssumed(t *testing.T) {
	t.Parallel()
	p := planning(t, plan(), enterprise())
	inFile := routeconfig.ConsumerTier{Tenant: "globex", Tier: "enterprise", Source: byTag}
	expect := func(org, want string) {
		t.Helper()
		if got := p.tierOf(org); got != want {
			t.Errorf("%s is on %s, want %s", org, got, want)
		}
	}
	p.knowing(time.Hour)
	expect("acme", "enterprise row, unseen")
	expect("globex", "essentials assumed, unseen")

	p.knowing(time.Hour, inFile)
	expect("globex", "enterprise consumer.tag.tier, unseen")
	p.sees("globex", "essentials", byTag, 2*time.Hour)
	expect("globex", "enterprise consumer.tag.tier, unseen") // the file was changed since
	p.sees("globex", "essentials", byTag, time.Minute)
	expect("globex", "essentials consumer.tag.tier")
	p.sees("globex", "enterprise", byHeader, 30*time.Second)
	expect("globex", "essentials consumer.tag.tier, enterprise header.X-Tier") // a header hides no tag
	p.sees("globex", "enterprise", byTag, 20*time.Second)
	expect("globex", "enterprise consumer.tag.tier, enterprise header.X-Tier") // it has replaced the one before
	p.sees("globex", "essentials", byTag, 0)
	expect("globex", "essentials consumer.tag.tier, enterprise consumer.tag.tier, enterprise header.X-Tier") // two consumers
	p.sees("initech", "essentials", "default", 0)
	expect("initech", "essentials default")
	p.sees("umbrella", "enterprise", "row", 0) // a row that is gone
	expect("umbrella", "essentials assumed, unseen")
	p.sees("hooli", "enterprise", byTag, 20*time.Minute)
	p.sees("hooli", "essentials", byTag, time.Minute)
	expect("hooli", "essentials consumer.tag.tier")
}

// Two consumers of globex have tiers in two pools. The limit of a row is counted in both.
func TestUsageAndResetOfAnOrgCoverThePoolsOfAllItsTiers(t *testing.T) {
	t.Parallel()
	config, block := plan(), func() schema.Redis {
		return schema.Redis{Host: "127.0.0.1", Port: int64(redistest.Single(t).Port), ReadTimeout: 5000}
	}
	config.Strategy, config.Redis = schema.StrategyRedis, block()
	config.RedisPools, config.Tiers[1].RedisPool = []schema.RedisPool{{Name: "big", Redis: block()}}, "big"
	config = config.WithDefaults()
	p := planning(t, config, policy.Rows{Version: 1, Policies: []policy.PolicyRow{
		{ID: 1, Policy: schema.Policy{Tenant: "globex", Limit: limitOf("row", "", 100)}},
	}})
	ctx, end := context.WithCancel(context.Background())
	stores := bucket.New(ctx, bucket.Options{
		Now: clock, Elapsed: clock, Budget: time.Minute, Log: slog.New(slog.DiscardHandler),
	})
	ended := make(chan error)
	go func() { ended <- stores.Run(ctx) }()
	t.Cleanup(func() {
		end()
		assert.NoError(t, <-ended)
	})
	central, release, err := stores.OpenOperators(&config)
	require.NoError(t, err)
	defer release()
	p.decider.Buckets, p.server.Buckets, p.server.OperatorBuckets = central, central, central
	p.knowing(0, routeconfig.ConsumerTier{Tenant: "globex", Tier: "enterprise", Source: byTag},
		routeconfig.ConsumerTier{Tenant: "globex", Tier: "essentials", Source: byTag})
	p.checks(admin, `{"org_id":"globex","tier":"enterprise","cost":3}`)
	p.checks(admin, `{"org_id":"globex","tier":"essentials","cost":5}`)
	used := func() (all []string) {
		u := read[answers.Usage](p.world, p.want(p.as("GET", "/v1/orgs/globex/ratelimit/usage", ""), http.StatusOK))
		require.Len(t, u.Others, 1)
		all = append(all, u.Tier+" "+u.Pool, u.Others[0].Tier+" "+u.Others[0].Pool)
		for _, b := range u.Items {
			all = append(all, fmt.Sprintf("%s %s %d", b.Policy, b.Tier, b.Used))
		}
		return all
	}
	assert.ElementsMatch(t, []string{
		"enterprise big", "essentials default", "row  3", "row  5", "daily enterprise 3", "daily essentials 5",
		"writes enterprise 0",
	}, used())
	p.want(p.as("POST", "/v1/orgs/globex/ratelimit/reset", `{"policy":"row","reason":"billed twice"}`), http.StatusOK)
	assert.Subset(t, used(), []string{"row  0", "daily enterprise 3", "daily essentials 5"})
	assert.NotContains(t, used(), "row  5")
	a := p.want(p.as("GET", "/v1/orgs/globex/ratelimit/policies", ""), http.StatusOK)
	assert.Contains(t, read[answers.InForce](p.world, a).Summary, "in the Redis pool big")
}

func TestADecisionForACallerUsesOnlyATierThatNoClientChooses(t *testing.T) {
	t.Parallel()
	p := planning(t, plan(), policy.Rows{Version: 1})
	tiers := p.knowing(time.Hour)
	expect := func(body, want string) {
		t.Helper()
		require.NoError(t, tiers.Refresh(t.Context(), ""))
		c := p.checks(admin, body)
		if got := c.Tier + " " + c.TierSource; got != want || c.TierSeenAt.IsZero() == strings.Contains(want, "consumer") {
			t.Errorf("%s is decided by %s, seen at %v, want %s", body, got, c.TierSeenAt, want)
		}
	}
	expect(`{"org_id":"globex"}`, "essentials assumed")
	p.sees("globex", "enterprise", byHeader, time.Minute)
	expect(`{"org_id":"globex"}`, "essentials default")
	p.sees("globex", "enterprise", byTag, 0)
	expect(`{"org_id":"globex"}`, "enterprise consumer.tag.tier")
	expect(`{"org_id":"globex","tier":"essentials"}`, "essentials query")
	p.sees("globex", "essentials", byHeader, -time.Hour) // forged, and seen last
	expect(`{"org_id":"globex"}`, "enterprise consumer.tag.tier")
	p.sees("globex", "essentials", "default", -time.Second) // the tag is gone
	expect(`{"org_id":"globex"}`, "essentials default")
}

func TestTheTokenOfAnOrgMayClaimTheTierThatNodesSaw(t *testing.T) {
	t.Parallel()
	p := planning(t, plan(), policy.Rows{Version: 1})
	tiers := p.knowing(time.Hour)
	p.sees("acme", "enterprise", byTag, 0)
	require.NoError(t, tiers.Refresh(t.Context(), ""))
	for tier, want := range map[string]int{"": 200, "enterprise": 200, "essentials": 403} {
		body := fmt.Sprintf(`{"org_id":"acme","tier":%q}`, tier)
		p.want(p.do(call{ofAcme, "POST", "/v1/ratelimit/check", body, nil}), want)
	}
}

func TestAnOrgOfTwoTiersReadsTheLimitsOfBoth(t *testing.T) {
	t.Parallel()
	p := planning(t, plan(), policy.Rows{Version: 1})
	tiers := p.knowing(time.Hour)
	p.sees("globex", "essentials", byTag, time.Second)
	p.sees("globex", "enterprise", byTag, 0)
	p.sees("globex", "essentials", byTag, 0) // two consumers in turn
	require.NoError(t, tiers.Refresh(t.Context(), ""))
	listed := map[string]bool{}
	add := func(place, policy, tier string) {
		if policy == "daily" {
			listed[place+" "+tier] = true
		}
	}
	below := "/v1/orgs/globex/ratelimit/"
	for _, l := range read[answers.InForce](p.world, p.want(p.as("GET", below+"policies", ""), http.StatusOK)).Limits {
		add("limit", l.Policy, l.Tier)
	}
	for _, b := range read[answers.Usage](p.world, p.want(p.as("GET", below+"usage", ""), http.StatusOK)).Items {
		add("bucket", b.Policy, b.Tier)
	}
	if len(listed) != 4 {
		t.Errorf("listed are %v, want the limit and the bucket of daily in both tiers", listed)
	}
}

// A decision reads what is known while Postgres does not answer, and while it is refreshed.
func TestTiersAreReadWhileTheStoreDoesNotAnswer(t *testing.T) {
	t.Parallel()
	p := planning(t, plan(), policy.Rows{Version: 1})
	tiers := p.knowing(time.Hour)
	p.sees("globex", "enterprise", byTag, 0)
	require.NoError(t, tiers.Refresh(t.Context(), ""))
	tx, err := p.pool.Begin(t.Context())
	if err == nil {
		_, err = tx.Exec(t.Context(), `LOCK TABLE rate_limiter.tenant_tiers`)
	}
	require.NoError(t, err)
	refreshed := make(chan error, 1)
	go func() { refreshed <- tiers.Refresh(t.Context(), "") }()
	const waiting = `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database()
		AND wait_event_type = 'Lock' AND query LIKE '%tenant_tiers%')`
	for isWaiting := false; !isWaiting; {
		require.NoError(t, p.pool.QueryRow(t.Context(), waiting).Scan(&isWaiting))
	}
	if got := tiers.Trusted("globex"); got != "enterprise" {
		t.Errorf("the tier is %q while the store is read", got)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-refreshed; err != nil {
		t.Error(err)
	}
}

func TestATierHasTheWordsOfItsRowElseOfTheConfig(t *testing.T) {
	t.Parallel()
	config, stored := plan(), enterprise()
	config.Tiers[1].Title, config.Tiers[1].PriceText = "Enterprise plan", "$499 a month"
	stored.Tiers = []policy.TierRow{{Name: "enterprise", Title: "Big"}}
	p := planning(t, config, stored)
	for _, what := range []string{"policies", "usage"} {
		a := p.want(p.as("GET", "/v1/orgs/acme/ratelimit/"+what, ""), http.StatusOK)
		if got := read[answers.OrgTier](p.world, a); got.Title != "Big" || got.Price != "$499 a month" {
			t.Errorf("%s: the tier has the words %q and %q", what, got.Title, got.Price)
		}
	}
	const tier, words = "/v1/ratelimit/tiers/gold", `{"title":"Gold","price_text":"$9 a month"}`
	p.want(p.world.as("PUT", tier, words), http.StatusCreated)
	a := p.want(p.world.as("GET", "/v1/ratelimit/tiers", ""), http.StatusOK)
	require.Contains(t, a.Body.String(), `"title":"Gold","price_text":"$9 a month"`)
}
