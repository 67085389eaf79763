package usage

import (
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/leadership"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/observe/usage"
)

// endpoints is the number of endpoints of a tenant. Each is in use in 5 % of a day's minutes, one after the other.
const endpoints = 20

// minutesOfDay is the number of rows of a tenant and day.
const minutesOfDay = 24 * 60

// scaled is a world whose usage of yesterday has the rows of many tenants.
type scaled struct {
	*world
	server  *pgtest.Server // nil: shared
	tenants int
}

// yesterday returns the begin of yesterday, by the clock of this process.
func yesterday() time.Time { return time.Now().UTC().Truncate(day).Add(-day) }

// loadDay writes the usage of yesterday, minute after minute as a leader does.
func (s *scaled) loadDay() {
	s.exec(`SELECT rate_limiter.keep_usage_partitions()`)
	s.exec(`INSERT INTO rate_limiter.usage_names (name) SELECT '' UNION ALL SELECT 'daily'
		UNION ALL SELECT format('tenant-%s', lpad(n::text, 6, '0')) FROM generate_series(0, $1 - 1) n
		UNION ALL SELECT format('GET /v1/records/%s', n) FROM generate_series(0, $2 - 1) n`, s.tenants, endpoints)
	s.exec(`INSERT INTO rate_limiter.usage_minutes (at, admitted, soft, denied, shadow_denied, cost, remaining_min, tenant,
			endpoint, policy)
		SELECT $1::timestamptz + m * interval '1 minute', 3, 0, 1, 0, 0, NULL, tenant + n, endpoint + (m + n) % $4, none
		FROM (
			SELECT min(id) FILTER (WHERE name LIKE 'tenant-%') AS tenant,
				min(id) FILTER (WHERE name LIKE 'GET %') AS endpoint, min(id) FILTER (WHERE name = '') AS none
			FROM rate_limiter.usage_names
		) first, generate_series(0, $2 - 1) m, generate_series(0, $3 - 1) n
		ORDER BY m`, yesterday(), minutesOfDay, s.tenants, endpoints)
	s.exec(`ANALYZE rate_limiter.usage_minutes, rate_limiter.usage_names`)
}

// readDay reads yesterday of a tenant by minute, and returns how long that took.
func (s *scaled) readDay(tenant int) time.Duration {
	s.Helper()
	q := rows.UsageQuery{
		Tenant: fmt.Sprintf("tenant-%06d", tenant), From: yesterday(), To: yesterday().Add(day), Step: rows.UsageSteps[0],
		ByEndpoint: true,
	}
	began := time.Now()
	found, err := rows.New(s.pool).Usage(s.Context(), q)
	took := time.Since(began)
	if err != nil || len(found.Items) != minutesOfDay {
		s.Fatalf("%s has %d rows (%v), want %d", q.Tenant, len(found.Items), err, minutesOfDay)
	}
	for _, r := range found.Items {
		if r.Admitted != 3 || r.Denied != 1 {
			s.Fatalf("%s has %+v, want 3 admitted and 1 denied", q.Tenant, r)
		}
	}
	return took
}

// fleet makes batches of nodes that report together, of requests to random tenants.
type fleet struct {
	processes []*process
	random    *rand.Rand
	rows      int64 // reported
}

// report stores a batch of each node, that began a time ago.
func (f *fleet) report(s *scaled, requests int, ago time.Duration) {
	s.Helper()
	minute := int(ago / time.Minute)
	for _, p := range f.processes {
		counts := map[usage.Key]usage.Counts{}
		for range requests {
			n := f.random.IntN(s.tenants)
			key := usage.Key{
				Tenant: fmt.Sprintf("tenant-%06d", n), Endpoint: fmt.Sprintf("GET /v1/records/%d", (minute+n)%endpoints),
			}
			c := counts[key]
			c.Add(usage.Counts{Admitted: 1, Remaining: usage.NoRemaining})
			c.Remaining = usage.NoRemaining
			counts[key] = c
			key.Policy = "daily"
			c.Cost, c.Remaining = c.Admitted, 1000
			counts[key] = c
		}
		b := p.next()
		for _, key := range sortedKeys(counts) {
			b.Rows = append(b.Rows, usage.Row{Key: key, Counts: counts[key]})
		}
		f.rows += int64(len(b.Rows))
		s.report(p.node, b, ago)
	}
}

// newFleet returns nodes with a process each.
func newFleet(nodes int) *fleet {
	f := &fleet{random: rand.New(rand.NewPCG(1, 2))}
	for n := range nodes {
		f.processes = append(f.processes, &process{node: fmt.Sprint("node-", n), epoch: fmt.Sprintf("%016x", n+1)})
	}
	return f
}

// unpackAll unpacks all batches as the leader, and returns how long that took.
func (s *scaled) unpackAll() time.Duration {
	s.Helper()
	conn, err := s.leader.job().Open(s.Context())
	require.NoError(s, err)
	defer leadership.Close(conn)
	l := s.leader.newSession(conn)
	began := time.Now()
	for more := true; more && err == nil; {
		more, err = l.unpack(s.Context())
	}
	require.NoError(s, err)
	return time.Since(began)
}

// The short form of BenchmarkHistoryOfManyTenants.
func TestADayOfATenantIsReadWithoutTheRowsOfOthers(t *testing.T) {
	s := &scaled{world: newWorld(t), tenants: 100}
	s.loadDay()
	// Of so few tenants a scan of all rows is cheap by the default.
	s.exec(`DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET random_page_cost = 1', current_database()); END $$`)
	s.pool.Reset()
	before := s.readRows()
	s.readDay(17)
	s.pool.Reset() // the end of a connection writes its statistics
	await.That(s, "statistics", func() bool { return s.readRows() >= before+minutesOfDay })
	if read := s.readRows() - before; read > 2*minutesOfDay {
		t.Errorf("a read of %d rows visits %d", minutesOfDay, read)
	}
	f := newFleet(10)
	f.report(s, 50, time.Minute)
	s.unpackAll()
	assert.EqualValues(t, 3*minutesOfDay*100+2*10*50, s.admitted("usage_minutes"))
}

func TestTheRowsOfATenantAreSideBySideOnceTheyAreSummedUp(t *testing.T) {
	s := &scaled{world: newWorld(t), tenants: 40}
	s.loadDay()
	if got := s.mostPages("usage_minutes"); got < minutesOfDay/4 {
		t.Fatalf("as the minutes come, those of a tenant are on %d pages", got)
	}
	s.leader.shift = 2 * day // yesterday is over for long
	s.lead()
	s.readDay(17)
	assert.EqualValues(t, 3*minutesOfDay*int64(s.tenants), s.admitted("usage_minutes"),
		"the minutes have admitted after they were ordered")
	// Of each hour and of the day, they begin on one page and may end on the next.
	for table, most := range map[string]int64{"usage_minutes": 2 * 24, "usage_hours": 2 * 24, "usage_days": 2} {
		if got := s.mostPages(table); got > most {
			t.Errorf("the rows of a tenant in %s are on %d pages, want at most %d", table, got, most)
		}
	}
}

// mostPages returns on how many pages the rows of a tenant are, at most.
func (s *scaled) mostPages(table string) int64 {
	s.Helper()
	return s.number(`SELECT max(pages) FROM (
		SELECT count(DISTINCT (tableoid, (ctid::text::point)[0])) AS pages
		FROM rate_limiter.` + table + ` GROUP BY tenant) t`)
}

// readRows returns how many rows of minutes were visited.
func (s *scaled) readRows() int64 {
	return s.number(`SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0))::bigint FROM pg_stat_user_tables
		WHERE relname LIKE 'usage\_minutes\_%'`)
}

// BenchmarkHistoryOfManyTenants measures the aims for the usage of 10,000 tenants: the bytes of a row, the read of a
// tenant's day, and how many rows a leader unpacks in the time in which 100 nodes report them. make bench-usage runs it
// with a Postgres on the disk.
func BenchmarkHistoryOfManyTenants(b *testing.B) {
	const perSecond, every = 100, 5
	tenants, nodes, reads := 10_000, 100, 200
	if testing.Short() {
		tenants, nodes, reads = 100, 2, 5
	}
	for b.Loop() {
		server := pgtest.Start(b)
		s := &scaled{world: worldOf(b, server.Database(b)), server: server, tenants: tenants}
		s.loadDay()
		rows := s.number(`SELECT count(*) FROM rate_limiter.usage_minutes`)
		bytes := s.number(`SELECT sum(pg_total_relation_size(inhrelid))::bigint FROM pg_inherits
			WHERE inhparent = 'rate_limiter.usage_minutes'::regclass`)
		b.ReportMetric(float64(rows)/1e6, "million-rows")
		b.ReportMetric(float64(bytes)/float64(rows), "bytes/row")

		s.measureReads(b, reads, "unsummed-")

		f := newFleet(nodes)
		const minutes = 3
		took := time.Duration(0)
		for second := 0; second < minutes*60; second += every {
			f.report(s, perSecond*every, minutes*time.Minute-time.Duration(second)*time.Second)
			took += s.unpackAll()
		}
		b.ReportMetric(float64(f.rows)/(minutes*60), "reported-rows/s")
		b.ReportMetric(float64(f.rows)/took.Seconds(), "unpacked-rows/s")

		began := time.Now()
		s.leader.shift = 0
		s.lead() // sums the hours of yesterday up
		b.ReportMetric(time.Since(began).Seconds(), "sum-up-day-s")
		s.exec(`VACUUM rate_limiter.usage_minutes`) // as autovacuum does in time
		s.measureReads(b, reads, "")
		b.ReportMetric(0, "ns/op")
	}
}

// measureReads reports how long the day of a random tenant is read, from the disk and then from memory.
func (s *scaled) measureReads(b *testing.B, reads int, prefix string) {
	b.Helper()
	s.forget(b)
	random := rand.New(rand.NewPCG(3, 4))
	cold, warm := []time.Duration(nil), []time.Duration(nil)
	for range reads {
		tenant := random.IntN(s.tenants)
		cold, warm = append(cold, s.readDay(tenant)), append(warm, s.readDay(tenant))
	}
	slices.Sort(cold)
	slices.Sort(warm)
	b.ReportMetric(millis(cold[reads/2]), prefix+"cold-median-ms")
	b.ReportMetric(millis(cold[reads*99/100]), prefix+"cold-p99-ms")
	b.ReportMetric(millis(warm[reads/2]), prefix+"warm-median-ms")
}

func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// forget makes reads come from the disk: it restarts Postgres, and drops its files from the memory of the system.
func (s *scaled) forget(b *testing.B) {
	b.Helper()
	s.pool.Reset()
	s.server.Stop(b)
	err := filepath.WalkDir(s.server.Dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		file, err := os.Open(path)
		if err != nil {
			return err
		}
		defer file.Close()
		return unix.Fadvise(int(file.Fd()), 0, 0, unix.FADV_DONTNEED)
	})
	require.NoError(b, err)
	s.server.Start(b)
}
