package policysync_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/policysync"
)

func TestAStandbyIsFollowedAlsoOnceItIsPromoted(t *testing.T) {
	primary := pgtest.Start(t)
	w := worldOn(t, primary)
	first := w.policies(1, 3)
	standby := primary.Standby(t)
	options := w.options()
	options.Source.DSN = standby.Here(primary, w.dsn)
	options.Dir, options.BeatEvery = t.TempDir(), 10*time.Millisecond
	n := start(t, options)
	n.await(first)
	n.await(w.policies(4, 4))
	if s := n.Stats(); !s.Standby || !s.Connected || n.Snapshot().Len() != 4 {
		t.Errorf("the node has %+v, want four rows of a standby", s)
	}
	if n.log.count("is a standby") != 1 || n.log.count("refused") != 0 || n.log.count("no contact") != 0 {
		t.Errorf("it logs\n%s\nwant one line about the standby", n.log)
	}
	assert.False(t, w.reports("node-1"), "the node has reported")

	w.pool.Close() // so the old primary has no client
	primary.Stop(t)
	standby.Promote(t)
	promoted := &world{t, options.Source.DSN, pgtest.Pool(t, options.Source.DSN)}
	n.until("it follows no standby any more", func(s policysync.Stats) bool { return s.Connected && !s.Standby })
	await.That(promoted, "it reports", func() bool { return promoted.reports("node-1") })
	n.await(promoted.policies(5, 5))
	if n.log.count("no longer a standby") != 1 || n.log.count("no contact") != 0 {
		t.Errorf("it logs\n%s\nwant one line about the promotion", n.log)
	}
}
