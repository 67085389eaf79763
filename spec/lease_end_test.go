package spec

import (
	"net/http"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
)

func TestAKilledNodeLosesOnlyItsLeases(t *testing.T) {
	t.Parallel()
	const connections = 4 // to each node; each may have one admission without an answer
	f := onSocket(t, redistest.Single(t))
	nodes := f.joinAll(2)
	f.awaitLeases(nodes...)
	awaitTurn(t)
	quota := yearly(4000)
	tr := f.offer(by("acme"), steady(1000))
	dying := tr.to(nodes[0], nodes[0].open("", quota.config()), connections)
	tr.to(nodes[1], nodes[1].open("", quota.config()), connections)
	nodes[0].awaitSpent(t, 300)
	dying.over.Store(true)
	nodes[0].kill()
	tr.awaitDenials(t, 100)
	n := counted(tr.stop(), http.StatusOK)
	t.Logf("%d of %d were admitted", n, quota.limit)
	if n > quota.limit || n < quota.limit-quota.limit*2/100-connections {
		t.Errorf("%d of %d were admitted; a killed node takes at most 2 %% with it, and %d requests", n, quota.limit, connections)
	}
}
