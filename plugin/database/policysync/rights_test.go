package policysync_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/policysync"
)

func TestTheGrantsOfTheReadmeSufficeForANode(t *testing.T) {
	server := pgtest.Granted(t)
	w := &world{t, server.RoleDSN(pgtest.Node), pgtest.Pool(t, server.DSN("ratelimit"))}
	n := start(t, w.options())
	n.await(w.policies(1, 3))
	n.await(w.policies(4, 4))
	n.until("it has reported", func(policysync.Stats) bool {
		return value[int](w, `SELECT count(*) FROM rate_limiter.nodes WHERE version = 2`) == 1
	})
	n.stop()
	assert.Zero(t, value[int](w, `SELECT count(*) FROM rate_limiter.nodes`), "nodes remain after it has ended")
}
