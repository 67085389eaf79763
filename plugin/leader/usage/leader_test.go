package usage

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
)

func TestABatchThatIsMissingIsWaitedForAndThenCountsAsAGap(t *testing.T) {
	w := newWorld(t)
	p := newProcess(1)
	first, second, third := p.next(count("acme", 1)), p.next(count("acme", 10)), p.next(count("acme", 100))
	w.report(p.node, first, 0)
	w.report(p.node, third, 0)
	if done := w.lead(); done.Batches != 1 || done.Gaps != 0 || w.admitted("usage_minutes") != 1 {
		t.Errorf("the leader has done %+v, want the third batch to wait for the second", done)
	}
	w.leader.options.GapAfter = time.Nanosecond
	if done := w.lead(); done.Batches != 1 || done.Gaps != 1 || w.admitted("usage_minutes") != 101 {
		t.Errorf("after the time to wait the leader has done %+v, want one gap", done)
	}
	w.report(p.node, second, 0)
	if done := w.lead(); done.Again != 1 || w.admitted("usage_minutes") != 101 {
		t.Errorf("with the second batch the leader has done %+v, want that it adds nothing", done)
	}
	gaps := w.number(`SELECT gaps FROM rate_limiter.usage_sources`)
	if lines := w.log.Count("did not come"); gaps != 1 || lines != 1 {
		t.Errorf("the source has %d gaps, and %d lines report them; want 1 and 1", gaps, lines)
	}
}

func TestACheckThatFailsDoesNotKeepTheLeaderFromItsOtherWork(t *testing.T) {
	w := newWorld(t)
	p := newProcess(1)
	w.report(p.node, p.next(count("acme", 1)), 0)
	l := w.newLeader()
	chores := 0
	l.options.Check = func(context.Context, *pgx.Conn) error { return errors.New("the quotas cannot be read") }
	l.options.Chores = func(context.Context, *pgx.Conn) (bool, error) {
		chores++
		return false, nil
	}
	if done, err := l.Once(t.Context()); err == nil || done.Batches != 1 || chores != 1 {
		t.Errorf("the leader has done %+v and %d times its chores, with %v", done, chores, err)
	}
	assert.EqualValues(t, 1, w.log.Count("the quotas cannot be read"), "lines report the check")
}

func TestABatchThatCannotBeDecodedIsSetAsideUntilItIsTooLate(t *testing.T) {
	w := newWorld(t)
	p, q := newProcess(1), newProcess(2)
	w.reportBytes(p.node, p.epoch, p.next().Seq, 0, []byte("of another program"))
	w.report(p.node, p.next(count("acme", 1)), 0)
	other, err := q.next(count("acme", 10)).MarshalBinary()
	require.NoError(t, err)
	w.reportBytes(p.node, newProcess(3).epoch, 1, 0, other) // reported as another one
	if done := w.lead(); done.Faulty != 2 || done.Batches != 1 || w.admitted("usage_minutes") != 1 {
		t.Errorf("the leader has done %+v, want two batches set aside and one added", done)
	}
	if lines := w.log.Count("set aside in usage_batches"); lines != 1 {
		t.Errorf("%d lines report it, want one: %s", lines, w.log)
	}
	assert.EqualValues(t, 2, w.number(`SELECT count(*) FROM rate_limiter.usage_batches WHERE fault <> ''`))
	w.exec(`UPDATE rate_limiter.usage_batches SET began = began - interval '4 days'`)
	w.lead()
	assert.Zero(t, w.number(`SELECT (SELECT count(*) FROM rate_limiter.usage_batches) + sum(batches)::bigint
		FROM rate_limiter.usage_nodes`), "batches that are left, or counted as waiting")
}

func TestABatchFromBeforeTheOldestMinuteIsDroppedAndCounted(t *testing.T) {
	w := newWorld(t)
	p := newProcess(1)
	w.report(p.node, p.next(count("acme", 1)), 73*time.Hour)
	w.report(p.node, p.next(count("acme", 10)), 0)
	if done := w.lead(); done.TooLate != 1 || done.Batches != 1 || w.admitted("usage_minutes") != 10 {
		t.Errorf("the leader has done %+v, want the first batch dropped", done)
	}
	late := w.number(`SELECT too_late FROM rate_limiter.usage_sources`)
	if lines := w.log.Count("were dropped"); late != 1 || lines != 1 {
		t.Errorf("the source has %d batches that are too late, and %d lines report it; want 1 and 1", late, lines)
	}
}

func TestWhatComesAfterItsDayWasClosedCountsOnTheDayItComes(t *testing.T) {
	w := newWorld(t)
	p, q := newProcess(1), newProcess(2)
	w.report(p.node, p.next(count("acme", 1)), 40*time.Hour)
	w.lead()
	w.leader.shift = 40 * time.Hour // no source is live
	w.lead()
	w.report(q.node, q.next(count("acme", 10)), 40*time.Hour)
	w.lead()
	late := w.number(`SELECT sum(admitted)::bigint FROM rate_limiter.usage_days, rate_limiter.usage_state
		WHERE late AND at >= days_until`)
	if inTime := w.number(`SELECT sum(admitted)::bigint FROM rate_limiter.usage_days WHERE NOT late`); late != 10 ||
		inTime != 1 {
		t.Errorf("%d count in time and %d late, want 1 and 10", inTime, late)
	}
	assert.EqualValues(t, 11, w.admitted("usage_hours"), "the hours")
}

func TestADayStaysOpenWhileALiveSourceHasNotReportedItsEnd(t *testing.T) {
	w := newWorld(t)
	w.exec(`UPDATE rate_limiter.usage_state
		SET days_until = date_trunc('day', clock_timestamp() - interval '1 day', 'UTC'),
			hours_until = date_trunc('day', clock_timestamp(), 'UTC')`) // yesterday is open
	w.exec(`INSERT INTO rate_limiter.usage_sources
			(node, epoch, login, last_seq, gaps, too_late, faulty, watermark, seen_at)
		SELECT 'slow', '0', 'x', 1, 0, 0, 0, hours_until + interval '59 minutes', clock_timestamp() + interval '2 hours'
		FROM rate_limiter.usage_state`)
	if err := w.pool.QueryRow(t.Context(), `SELECT hours_until + interval '1 hour 30 minutes' - clock_timestamp()
		FROM rate_limiter.usage_state`).Scan(&w.leader.shift); err != nil {
		t.Fatal(err)
	}
	assert.Zero(t, w.lead().Days, "at 01:30 the day before is closed, although a live source has reported until 00:59")
	w.exec(`UPDATE rate_limiter.usage_sources SET watermark = watermark + interval '1 minute'`)
	assert.EqualValues(t, 1, w.lead().Days,
		"at 01:30 the day before is open, although all live sources have reported until 01:00")
}

func TestALeaderRecoversFromAMissingPartitionAndLogsItOnce(t *testing.T) {
	w := newWorld(t)
	l := w.run()
	await.That(w, "leading", func() bool { return l.Stats().Leading })
	p := newProcess(1)
	w.report(p.node, p.next(count("acme", 1)), 0)
	await.That(w, "added", func() bool { return w.admitted("usage_minutes") == 1 })
	w.exec(`DO $$ BEGIN
		EXECUTE 'DROP TABLE rate_limiter.usage_minutes_' || to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYYMMDD');
	END $$`)
	w.report(p.node, p.next(count("acme", 10)), 0)
	await.That(w, "added", func() bool { return w.admitted("usage_minutes") == 10 })
	await.That(w, "logged", func() bool { return w.log.Count("succeeds again") == 1 })
	assert.EqualValues(t, 1, w.log.Count("unpacking usage failed"), "lines report the failure")
}

func TestAnotherProcessLeadsWhenTheLeaderHasLostItsSession(t *testing.T) {
	w := newWorld(t)
	first := w.run()
	await.That(w, "leading", func() bool { return first.Stats().Leading })
	if done, err := w.newLeader().Once(t.Context()); err != nil || done.Leading {
		t.Errorf("a second leader does %+v (%v), want nothing", done, err)
	}
	second := w.run()
	p := newProcess(1)
	for n := int64(1); n <= 5; n++ {
		w.exec(`SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND objid = $1`, testLock)
		w.report(p.node, p.next(count("acme", 1)), 0)
		await.That(w, "added", func() bool { return w.admitted("usage_minutes") == n })
	}
	await.That(w, "one leading", func() bool { return first.Stats().Leading != second.Stats().Leading })
}

func TestPartitionsAreMadeAheadAndDroppedAfterTheirRetention(t *testing.T) {
	w := newWorld(t)
	w.exec(`CREATE TABLE rate_limiter.usage_minutes_20200101 PARTITION OF rate_limiter.usage_minutes
			FOR VALUES FROM ('2020-01-01 00:00:00+00') TO ('2020-01-02 00:00:00+00');
		CREATE TABLE rate_limiter.usage_hours_202001 PARTITION OF rate_limiter.usage_hours
			FOR VALUES FROM ('2020-01-01 00:00:00+00') TO ('2020-02-01 00:00:00+00');
		CREATE TABLE rate_limiter.usage_days_2020 PARTITION OF rate_limiter.usage_days
			FOR VALUES FROM ('2020-01-01 00:00:00+00') TO ('2021-01-01 00:00:00+00')`)
	partitions := func(table string) int64 {
		return w.number(`SELECT count(*) FROM pg_inherits WHERE inhparent = ('rate_limiter.' || $1)::regclass`, table)
	}
	w.exec(`UPDATE rate_limiter.usage_state SET days_until = '2020-01-01', hours_until = '2020-01-01'`)
	w.exec(`SELECT rate_limiter.keep_usage_partitions()`)
	if w.number(`SELECT count(*) FROM pg_class WHERE relname IN ('usage_minutes_20200101', 'usage_hours_202001')`) != 2 {
		t.Error("minutes that are not in the hours, or hours that are not in the days, are dropped")
	}
	w.exec(`UPDATE rate_limiter.usage_state SET days_until = '2026-01-01', hours_until = '2026-01-01'`)
	w.exec(`SELECT rate_limiter.keep_usage_partitions()`)
	assert.Zero(t, w.number(`SELECT count(*) FROM pg_class WHERE relname ~ '^usage_[a-z]+_2020'`),
		"old partitions are left")
	assert.EqualValues(t, 5, partitions("usage_minutes"), "there are partitions of minutes")
}

func TestReportUsageBoundsWhatANodeCanStore(t *testing.T) {
	w := newWorld(t)
	const call = `SELECT rate_limiter.report_usage($1, $2, $3, $4, $5)`
	epoch := newProcess(1).epoch
	for what, c := range map[string]struct {
		args []any
		code string
	}{
		"no name":         {[]any{"", epoch, 1, "0", []byte("x")}, "22023"},
		"a long name":     {[]any{strings.Repeat("n", 257), epoch, 1, "0", []byte("x")}, "22023"},
		"a short epoch":   {[]any{"n", "1", 1, "0", []byte("x")}, "22023"},
		"seq 0":           {[]any{"n", epoch, 0, "0", []byte("x")}, "22023"},
		"no payload":      {[]any{"n", epoch, 1, "0", []byte{}}, "22023"},
		"null":            {[]any{"n", epoch, 1, "0", nil}, "22023"},
		"no age":          {[]any{"n", epoch, 1, nil, []byte("x")}, "22023"},
		"a large payload": {[]any{"n", epoch, 1, "0", make([]byte, 1<<20+1)}, "22023"},
		"too many":        {[]any{"many", epoch, 1, "0", []byte("x")}, "53400"},
		"too much":        {[]any{"much", epoch, 1, "0", []byte("x")}, "53400"},
	} {
		w.exec(`INSERT INTO rate_limiter.usage_nodes (login, node, batches, bytes, seen_at)
			VALUES (session_user, 'many', 40000, 1, now()), (session_user, 'much', 1, 512 * 1024 * 1024, now())
			ON CONFLICT DO NOTHING`)
		_, err := w.pool.Exec(t.Context(), call, c.args...)
		if failed := new(pgconn.PgError); !errors.As(err, &failed) || failed.Code != c.code {
			t.Errorf("%s: %v, want SQLSTATE %s", what, err, c.code)
		}
	}
	w.exec(`INSERT INTO rate_limiter.usage_nodes
		SELECT session_user, 'n' || i, 0, 0, now() FROM generate_series(3, 2000) i`)
	_, err := w.pool.Exec(t.Context(), call, "one more", epoch, 1, "0", []byte("x"))
	assert.Error(t, err, "a login can report as any number of nodes")
	w.exec(`UPDATE rate_limiter.usage_nodes SET login = 'another'`)
	_, err = w.pool.Exec(t.Context(), call, "many", epoch, 1, "0", []byte("x"))
	assert.NoError(t, err, "what another login has stored counts")
	assert.EqualValues(t, 1, w.number(`SELECT count(*) FROM rate_limiter.usage_batches`), "batches are stored")
}

func TestABatchWithAnImpossibleAgeGetsAPossibleTime(t *testing.T) {
	w := newWorld(t)
	for i, age := range []string{"-1 hour", "1000000 years"} {
		w.exec(`SELECT rate_limiter.report_usage('n', $1, 1, $2, 'x')`, newProcess(i).epoch, age)
	}
	if n := w.number(`SELECT count(*) FROM rate_limiter.usage_batches
		WHERE began BETWEEN received_at - interval '30 days' AND received_at`); n != 2 {
		t.Errorf("%d of 2 batches began in the last 30 days", n)
	}
}

func TestNamesBeyondTheBoundCountTogether(t *testing.T) {
	w := newWorld(t)
	p := newProcess(1)
	w.report(p.node, p.next(count("acme", 1)), 0)
	w.lead()
	w.exec(`ALTER TABLE rate_limiter.usage_names ALTER COLUMN id RESTART WITH 2000000`)
	w.exec(`INSERT INTO rate_limiter.usage_names (name) VALUES ('last')`)
	w.report(p.node, p.next(count("acme", 10), count("new", 100), count("new too", 1000)), 0)
	w.report(p.node, p.next(count("newer", 10_000)), 0)
	w.lead()
	for name, want := range map[string]int64{"acme": 11, "(other)": 11_100} {
		got := w.number(`SELECT sum(admitted)::bigint FROM rate_limiter.usage_minutes
			JOIN rate_limiter.usage_names ON id = tenant WHERE name = $1`, name)
		assert.Equal(t, want, got, "%s has admitted", name)
	}
}

func TestAnOpenReportOfANodeStopsNoUnpacking(t *testing.T) {
	w := newWorld(t)
	hostile, other := newProcess(1), newProcess(2)
	w.report(hostile.node, hostile.next(count("acme", 1)), 0)
	w.report(other.node, other.next(count("acme", 2)), 0)
	w.exec(`INSERT INTO rate_limiter.usage_nodes VALUES (session_user, 'old', 0, 0, now() - interval '2 days')`)
	for _, node := range []string{hostile.node, "old"} {
		open, err := w.pool.Begin(t.Context())
		require.NoError(t, err)
		defer func() { _ = open.Rollback(context.WithoutCancel(t.Context())) }()
		_, err = open.Exec(t.Context(), `SELECT rate_limiter.report_usage($1, $2, 9, '0', 'x')`, node, hostile.epoch)
		require.NoError(t, err)
	}
	began := time.Now()
	assert.EqualValues(t, 2, w.lead().Batches, "the leader has unpacked batches in %v", time.Since(began))
	waiting := func(node string) int64 {
		return w.number(`SELECT batches FROM rate_limiter.usage_nodes WHERE node = $1`, node)
	}
	if own, others := waiting(hostile.node), waiting(other.node); own != 1 || others != 0 {
		t.Errorf("%d batches of the node and %d of the other are counted, want 1 until its report ends, and 0", own, others)
	}
}
