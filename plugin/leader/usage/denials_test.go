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

// deniedBatch returns a batch with denials of acme: so many, from a number of users that differ by process.
func deniedBatch(p *process, limited int64, registers ...int) *usage.Batch {
	b := p.next()
	n := usage.Denials{Tenant: "acme", Limited: limited, Penalized: 2, Unavailable: 1}
	for _, i := range registers {
		n.Users[i] = 3
	}
	b.Denials = []usage.Denials{n}
	return b
}

func TestDenialsOfAllNodesAreMergedByMinute(t *testing.T) {
	w := newWorld(t)
	one, two := newProcess(1), newProcess(2)
	for _, b := range []struct {
		p *process
		b *usage.Batch
	}{{one, deniedBatch(one, 10, 1, 2)}, {two, deniedBatch(two, 20, 2, 3)}} {
		w.report(b.p.node, b.b, 0)
	}
	w.lead()
	w.report(one.node, deniedBatch(one, 5, 7), 0)
	w.lead()
	// A minute may have passed between the reports.
	if n := w.number(`SELECT (sum(limited) * 100 + sum(penalized) * 10 + sum(unavailable))::bigint
		FROM rate_limiter.abuse_denials`); n != 3563 {
		t.Errorf("limited, penalized and unavailable are %d, want 35, 6 and 3", n)
	}
	rows, _ := w.pool.Query(t.Context(), `SELECT users FROM rate_limiter.abuse_denials`)
	var all, read usage.Sketch
	_, err := pgx.ForEachRow(rows, []any{&read}, func() error {
		all.Merge(&read)
		return nil
	})
	require.NoError(t, err)
	assert.Equal(t, (usage.Sketch{1: 3, 2: 3, 3: 3, 7: 3}), all, "the users")
}

func TestOldDenialsAreDropped(t *testing.T) {
	w := newWorld(t)
	p := newProcess(1)
	w.report(p.node, deniedBatch(p, 10, 1), 0)
	w.lead()
	w.exec(`UPDATE rate_limiter.abuse_denials SET at = at - interval '61 minutes'`)
	w.report(p.node, deniedBatch(p, 10, 1), 2*denialsKept)
	w.lead()
	assert.Zero(t, w.number(`SELECT count(*) FROM rate_limiter.abuse_denials`), "rows of more than an hour ago are kept")
}

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
