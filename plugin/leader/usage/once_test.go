package usage

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/observe/usage"
)

// delivery is a batch on its way to the database.
type delivery struct {
	node  string
	batch *usage.Batch
	began time.Time
}

// traffic delivers batches late, twice and out of order, while leaders are killed.
type traffic struct {
	*world
	random    *rand.Rand
	processes []*process
	waiting   []delivery
	sent      []delivery
	total     map[usage.Key]usage.Counts // of all batches
	calls     map[string]int64           // micro-USD of all batches by model
	closed    map[string]string          // rows of closed days
}

func TestEveryBatchCountsOnceInMinutesHoursAndDaysHoweverItIsDelivered(t *testing.T) {
	for seed := range uint64(3) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			tr := &traffic{
				world: newWorld(t), random: rand.New(rand.NewPCG(seed, 0)), total: map[usage.Key]usage.Counts{},
				calls: map[string]int64{}, closed: map[string]string{},
			}
			for i := range 3 {
				tr.processes = append(tr.processes, newProcess(i+1))
			}
			for range 100 {
				tr.step()
			}
			tr.finish()
		})
	}
}

// step does one thing by chance.
func (tr *traffic) step() {
	switch n := tr.random.IntN(10); {
	case n < 4:
		tr.make()
	case n < 7 && len(tr.waiting) > 0:
		tr.deliver(tr.random.IntN(len(tr.waiting)))
	case n == 7 && len(tr.sent) > 0: // once more
		d := tr.sent[tr.random.IntN(len(tr.sent))]
		tr.report(d.node, d.batch, time.Since(d.began))
	case n == 8 && tr.leader.shift < 26*time.Hour:
		tr.leader.shift += time.Duration(tr.random.IntN(5)) * time.Hour
	default:
		tr.leadAndDie()
	}
}

// make makes a batch of the last 40 hours.
func (tr *traffic) make() {
	p := tr.processes[tr.random.IntN(len(tr.processes))]
	rows := map[usage.Key]usage.Counts{}
	for range tr.random.IntN(4) {
		rows[usage.Key{
			Tenant:   []string{"", "acme", "=cmd", "a,\n\"b"}[tr.random.IntN(4)],
			Endpoint: []string{"", "GET /a"}[tr.random.IntN(2)],
			Policy:   []string{"", "daily"}[tr.random.IntN(2)],
		}] = usage.Counts{
			Admitted: tr.random.Int64N(100), Soft: tr.random.Int64N(9), Denied: tr.random.Int64N(50),
			ShadowDenied: tr.random.Int64N(5), Cost: tr.random.Int64N(1000) - 300, Remaining: tr.random.Int64N(50) - 1,
		}
	}
	b := p.next()
	for _, key := range sortedKeys(rows) {
		b.Rows = append(b.Rows, usage.Row{Key: key, Counts: rows[key]})
		if sum, ok := tr.total[key]; ok {
			sum.Add(rows[key])
			tr.total[key] = sum
		} else {
			tr.total[key] = rows[key]
		}
	}
	for n := range tr.random.Int64N(3) {
		calls := usage.ModelCalls{Tenant: "acme", Model: fmt.Sprint("gpt-", n), Calls: 1, MicroUSD: tr.random.Int64N(9000)}
		b.Models = append(b.Models, calls)
		tr.calls[calls.Model] += calls.MicroUSD
	}
	age := time.Duration(tr.random.Int64N(int64(40 * time.Hour)))
	tr.waiting = append(tr.waiting, delivery{p.node, b, time.Now().Add(-age)})
}

func (tr *traffic) deliver(i int) {
	d := tr.waiting[i]
	tr.report(d.node, d.batch, time.Since(d.began))
	tr.waiting = append(tr.waiting[:i], tr.waiting[i+1:]...)
	tr.sent = append(tr.sent, d)
}

// leadAndDie runs a leader that is killed before one of its statements, if it has as many.
func (tr *traffic) leadAndDie() {
	tr.kill.arm(1 + tr.random.Int64N(60))
	l := tr.newLeader()
	l.shift = tr.leader.shift
	_, err := l.Once(tr.Context())
	if killed := tr.kill.left.Load() <= 0; (err != nil) != killed {
		tr.Fatalf("the leader ends with %v, killed: %v", err, killed)
	}
	tr.kill.disarm()
	tr.checkClosedDays()
}

// checkClosedDays checks that the days that were closed before have the same rows.
func (tr *traffic) checkClosedDays() {
	tr.Helper()
	rows, err := tr.pool.Query(tr.Context(), `SELECT s.at::text, coalesce(string_agg(d::text, ' ' ORDER BY d::text), '')
		FROM rate_limiter.usage_state, generate_series(date '2020-01-01', days_until - interval '1 day', '1 day') s (at)
		LEFT JOIN (
			SELECT at, r::text FROM rate_limiter.usage_days r UNION ALL SELECT day, r::text FROM rate_limiter.usage_models r
		) d (at, row) ON d.at = s.at GROUP BY s.at`)
	require.NoError(tr, err)
	var at, text string
	_, err = pgx.ForEachRow(rows, []any{&at, &text}, func() error {
		if before, ok := tr.closed[at]; ok && before != text {
			tr.Errorf("the closed day %s has changed from %s to %s", at, before, text)
		}
		tr.closed[at] = text
		return nil
	})
	require.NoError(tr, err)
}

// finish delivers the batches that are left, closes all days, and compares the sums.
func (tr *traffic) finish() {
	for len(tr.waiting) > 0 {
		tr.deliver(tr.random.IntN(len(tr.waiting)))
	}
	for range 2 {
		if done := tr.lead(); done.Gaps+done.Faulty+done.TooLate != 0 {
			tr.Errorf("the leader reports faults: %+v", done)
		}
		tr.checkClosedDays()
		tr.leader.shift = 80 * time.Hour // all hours and days are due
	}
	if left := tr.number(`SELECT count(*) FROM rate_limiter.usage_batches`); left != 0 {
		tr.Errorf("%d batches are left", left)
	}
	if left := tr.number(`SELECT sum(batches + bytes)::bigint FROM rate_limiter.usage_nodes`); left != 0 {
		tr.Errorf("of the batches %d are counted as waiting, want none", left)
	}
	for _, table := range [...]string{"usage_minutes", "usage_hours", "usage_days"} {
		if sums := tr.sums(table); !maps.Equal(sums, tr.total) {
			tr.Errorf("%s has %+v, want %+v", table, sums, tr.total)
		}
	}
	for model, want := range tr.calls {
		got := tr.number(`SELECT sum(micro_usd)::bigint FROM rate_limiter.usage_models WHERE model = $1`, model)
		assert.Equal(tr, want, got, "micro-USD of %s", model)
	}
	if wrong := tr.number(`WITH minutes AS (
			SELECT date_trunc('hour', at) AS at, tenant, endpoint, policy, sum(admitted), sum(cost), min(remaining_min)
			FROM rate_limiter.usage_minutes GROUP BY 1, 2, 3, 4
		), hours AS (
			SELECT at, tenant, endpoint, policy, admitted, cost, remaining_min FROM rate_limiter.usage_hours
		) SELECT count(*) FROM (
			(TABLE minutes EXCEPT TABLE hours) UNION ALL (TABLE hours EXCEPT TABLE minutes)) d`); wrong != 0 {
		tr.Errorf("%d hours are not the sums of their minutes", wrong)
	}
}

// sums returns the sums over a table by key.
func (tr *traffic) sums(table string) map[usage.Key]usage.Counts {
	tr.Helper()
	rows, err := tr.pool.Query(tr.Context(), `SELECT t.name, e.name, p.name, sum(admitted)::bigint, sum(soft)::bigint,
			sum(denied)::bigint, sum(shadow_denied)::bigint, sum(cost)::bigint, coalesce(min(remaining_min), -1)
		FROM rate_limiter.`+table+` JOIN rate_limiter.usage_names t ON t.id = tenant
		JOIN rate_limiter.usage_names e ON e.id = endpoint JOIN rate_limiter.usage_names p ON p.id = policy
		GROUP BY 1, 2, 3`)
	require.NoError(tr, err)
	all := map[usage.Key]usage.Counts{}
	var k usage.Key
	var c usage.Counts
	_, err = pgx.ForEachRow(rows, []any{
		&k.Tenant, &k.Endpoint, &k.Policy, &c.Admitted, &c.Soft, &c.Denied, &c.ShadowDenied, &c.Cost, &c.Remaining,
	}, func() error { all[k] = c; return nil })
	require.NoError(tr, err)
	return all
}

// The lock of a session can be lost without notice, for example behind a pooler in transaction mode.
func TestTwoLeadersAtOnceAddEveryBatchOnce(t *testing.T) {
	w := newWorld(t)
	var leaders []*Leader
	for i := range 2 {
		leaders = append(leaders, w.runWith(func(o *Options) { o.Lock += int64(i) }))
	}
	await.That(w, "both leading", func() bool { return leaders[0].Stats().Leading && leaders[1].Stats().Leading })
	const times, each = 10, 20
	processes := []*process{newProcess(2), newProcess(4), newProcess(6)} // of one node
	for range times {
		w.reportTogether(processes, each)
	}
	want := int64(times * each * len(processes))
	await.That(w, "all unpacked", func() bool { return leaders[0].Stats().Batches+leaders[1].Stats().Batches >= want })
	await.That(w, "all summed up", func() bool { return w.admitted("usage_hours") >= want })
	for _, table := range []string{"usage_minutes", "usage_hours"} {
		assert.Equal(t, want, w.admitted(table), "%s has admitted", table)
	}
	first, second := leaders[0].Stats().Batches, leaders[1].Stats().Batches
	assert.Equal(t, want, first+second, "the leaders have added %d and %d batches together", first, second)
}

// reportTogether reports batches of processes in one transaction, so that leaders find all of them at the same time.
func (w *world) reportTogether(processes []*process, each int) {
	w.Helper()
	err := pgx.BeginFunc(w.Context(), w.pool, func(tx pgx.Tx) error {
		for _, p := range processes {
			for range each {
				b := p.next(count("acme", 1))
				payload, err := b.MarshalBinary()
				if err != nil {
					return err
				}
				if _, err := tx.Exec(w.Context(), `SELECT rate_limiter.report_usage($1, $2, $3, '30 hours', $4)`, p.node,
					b.Epoch, b.Seq, payload); err != nil {
					return err
				}
			}
		}
		return nil
	})
	require.NoError(w, err)
}
