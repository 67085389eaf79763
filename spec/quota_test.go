package spec

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
)

// spendQuota sends requests of acme through a node.
func spendQuota(t *testing.T, n *node, requests int) {
	t.Helper()
	for range requests {
		if a, err := n.send("GET", "/records", "apikey", "alice"); err != nil || a.Status != 200 {
			t.Fatalf("%+v (%v)", a, err)
		}
	}
}

// notices returns what ratelimit usage notices lists of acme, oldest first: the columns REACHED and USED of each line.
func (p *plane) notices() (list []string) {
	p.t.Helper()
	for _, line := range strings.Split(p.operate("usage", "notices", "acme", "--last", "1h"), "\n")[1:] {
		cells := strings.Fields(line)
		list = append([]string{strings.Join(cells[6:9], " ")}, list...) // a policy is shown as: year (tier enterprise)
	}
	return list
}

// The limit has 60 requests a year. The leader is killed between two thresholds, and another process goes on.
func TestATenantIsNoticedOnceAtEachThresholdOfItsQuotaAlsoWhenTheLeaderChanges(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	p.operate("tenant", "set", "acme", "--tier", "enterprise", "--reason", "a test")
	first := p.serve()
	await.That(t, "a leader", func() bool {
		return strings.Contains(first.log.String(), "this process unpacks the usage")
	})
	second := p.serve()
	n := p.node("edge", p.dsn)

	spendQuota(t, n, 30)
	await.That(t, "the notice of 50 %", func() bool { return strings.Join(p.notices(), ", ") == "50 % 30" })
	require.NoError(t, first.cmd.Process.Kill())
	spendQuota(t, n, 18)
	await.That(t, "the notice of 80 %", func() bool { return strings.Join(p.notices(), ", ") == "50 % 30, 80 % 48" })
	if !strings.Contains(second.log.String(), "this process unpacks the usage") {
		t.Error("the second process has written a notice without leading")
	}
	spendQuota(t, n, 12)
	await.That(t, "the notice of 100 %", func() bool {
		return strings.Join(p.notices(), ", ") == "50 % 30, 80 % 48, 100 % 60"
	})
	var events, ids int
	err := p.rows.QueryRow(t.Context(), `SELECT count(*), count(DISTINCT event) FROM rate_limiter.outbox
		WHERE type = 'io.github.tenant-rate-limiting.quota.threshold' AND tenant = 'acme'`).Scan(&events, &ids)
	if err != nil || events != 3 || ids != 3 {
		t.Errorf("%d events with %d ids (%v), want one for each notice", events, ids, err)
	}
}
