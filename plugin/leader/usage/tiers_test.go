package usage

import (
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/observe/usage"
)

// storedTiers returns the tiers of all tenants, the one that was seen last first.
func (w *world) storedTiers() string {
	w.Helper()
	rows, err := w.pool.Query(w.Context(), `SELECT format('%s %s/%s (%s)', n.name, t.namespace, t.tier, t.source)
		FROM rate_limiter.tenant_tiers t JOIN rate_limiter.usage_names n ON n.id = t.tenant
		ORDER BY n.name, t.seen_at DESC`)
	require.NoError(w, err)
	list, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(w, err)
	return strings.Join(list, ", ")
}

func seen(tenant, namespace, tier, source string) usage.Tier {
	return usage.Tier{Tenant: tenant, Namespace: namespace, Tier: tier, Source: source}
}

func TestTheTierThatWasSeenLastIsKnown(t *testing.T) {
	w, p := newWorld(t), newProcess(1)
	const tag = "consumer.tag.tier"
	for _, step := range []struct {
		ago   time.Duration
		tiers []usage.Tier
		want  string
	}{
		{time.Minute, []usage.Tier{seen("acme", "eu", "free", tag)}, "acme eu/free (consumer.tag.tier)"},
		{
			50 * time.Second,
			[]usage.Tier{seen("acme", "eu", "free", tag), seen("acme", "eu", "pro", tag), seen("acme", "us", "pro", "row")},
			"acme us/pro (row), acme eu/pro (consumer.tag.tier), acme eu/free (consumer.tag.tier)",
		},
		{
			40 * time.Second,
			[]usage.Tier{seen("acme", "eu", "free", tag)},
			"acme eu/free (consumer.tag.tier), acme us/pro (row), acme eu/pro (consumer.tag.tier)",
		},
		{ // a batch that was late
			time.Hour,
			[]usage.Tier{seen("acme", "eu", "pro", tag), seen("beta", "eu", "pro", "default")},
			"acme eu/free (consumer.tag.tier), acme us/pro (row), acme eu/pro (consumer.tag.tier), beta eu/pro (default)",
		},
	} {
		b := p.next()
		b.Tiers = step.tiers
		w.report(p.node, b, step.ago)
		w.lead()
		assert.Equal(t, step.want, w.storedTiers())
	}
}

func TestTheTiersOfATenantAreBounded(t *testing.T) {
	w, b := newWorld(t), newProcess(1).next()
	for _, tier := range strings.Split("abcdefghijkl", "") {
		b.Tiers = append(b.Tiers, usage.Tier{Tenant: "acme", Namespace: "eu", Tier: tier, Source: "header.X-Tier"})
	}
	w.report("edge-1", b, time.Minute)
	w.lead()
	if got := w.storedTiers(); strings.Count(got, ",") != tiersKept-1 || !strings.HasPrefix(got, "acme eu/l ") {
		t.Errorf("known are %s, want the %d that were seen last", got, tiersKept)
	}
}
