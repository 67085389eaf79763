package usage

import (
	"testing"

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
