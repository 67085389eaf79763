package rows_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

// overTime has acme spend a token by monthly in each minute, of the last 90 days, in rows as the leader has them:
// minutes of the last two days, hours of the last 60, and days.
func overTime(t *testing.T, now time.Time) (*rows.DB, *pgxpool.Pool) {
	t.Helper()
	pool := pgtest.Pool(t, pgtest.Shared(t).Database(t))
	pgtest.Exec(t, pool, `SELECT rate_limiter.keep_usage_partitions()`)
	for _, table := range []string{"usage_days", "usage_hours", "usage_minutes"} {
		pgtest.Exec(t, pool, `CREATE TABLE rate_limiter.`+table+`_rest PARTITION OF rate_limiter.`+table+` DEFAULT`)
	}
	pgtest.Exec(t, pool, `INSERT INTO rate_limiter.usage_names (name) VALUES ('acme'), ('GET /a'), ('monthly/#7')`)
	pgtest.Exec(t, pool, `UPDATE rate_limiter.usage_state SET hours_until = date_trunc('hour', $1::timestamptz, 'UTC'),
		days_until = date_trunc('day', $1, 'UTC') - interval '24 hours'`, now)
	const fill = ` SELECT at, 1, 0, 0, 0, tokens, t.id, e.id, p.id `
	const from = ` FROM rate_limiter.usage_names t, rate_limiter.usage_names e, rate_limiter.usage_names p,
			rate_limiter.usage_state, (VALUES ($5::bigint)) v (tokens),
			generate_series(date_trunc($2, $1::timestamptz, 'UTC') - $3::interval, $1, $4::interval) at
		WHERE t.name = 'acme' AND e.name = 'GET /a' AND p.name = 'monthly/#7'`
	const columns = ` (at, admitted, soft, denied, shadow_denied, cost, tenant, endpoint, policy`
	pgtest.Exec(t, pool, `INSERT INTO rate_limiter.usage_minutes`+columns+`)`+fill+from, now, "day",
		"48 hours", "1 minute", 1)
	pgtest.Exec(t, pool, `INSERT INTO rate_limiter.usage_hours`+columns+`)`+fill+from+` AND at < hours_until`, now, "day",
		"1440 hours", "1 hour", 60)
	pgtest.Exec(t, pool, `INSERT INTO rate_limiter.usage_days`+columns+`, late)`+fill+`, false`+from+
		` AND at < days_until`, now, "day", "2160 hours", "24 hours", 1440)
	return rows.New(pool), pool
}

func TestWhatWasUsedBetweenTwoInstantsIsExactWhereRowsAreKept(t *testing.T) {
	now := time.Now().UTC().Truncate(time.Minute)
	s, _ := overTime(t, now)
	midnight := now.Truncate(24 * time.Hour)
	at := func(days, hours, minutes int) time.Time {
		return midnight.Add(time.Duration((days*24+hours)*60+minutes) * time.Minute)
	}
	for name, c := range map[string]struct {
		from, to time.Time
		lacks    time.Duration
	}{
		"hours of a month of Berlin":               {at(-20, 23, 0), at(0, 0, 0), 0},
		"until now":                                {at(-20, 22, 0), now.Add(time.Minute), 0},
		"minutes of a day of Kathmandu":            {at(-1, 18, 15), at(0, 0, 0), 0},
		"within an hour":                           {at(-1, 18, 15), at(-1, 18, 40), 0},
		"a month of Kathmandu":                     {at(-30, 18, 15), at(0, 0, 0), 45 * time.Minute},
		"until a half hour of weeks ago":           {at(-30, 18, 0), at(-9, 18, 30), 30 * time.Minute},
		"a quarter of UTC":                         {at(-90, 0, 0), at(0, 0, 0), 0},
		"a quarter of Berlin":                      {at(-90, 22, 0), at(0, 0, 0), 2 * time.Hour},
		"days of weeks ago":                        {at(-80, 0, 0), at(-70, 0, 0), 0},
		"the days on which hours are last dropped": {at(-64, 0, 0), at(-55, 0, 0), 0},
	} {
		found, err := s.Usage(t.Context(), rows.UsageQuery{
			Tenant: "acme", Policy: "monthly", From: c.from, To: c.to, Step: rows.UsagePeriod,
		})
		require.NoError(t, err, name)
		require.Len(t, found.Items, 1, name)
		want := int64((c.to.Sub(c.from) - c.lacks) / time.Minute)
		if row := found.Items[0]; *row.Cost != want || !row.At.Equal(c.from) || found.Inexact != (c.lacks > 0) ||
			!found.To.Equal(c.to) {
			t.Errorf("%s: %d tokens from %v, inexact %t, want %d", name, *row.Cost, row.At, found.Inexact, want)
		}
	}
	var spent []int64
	err := s.UsageSpent(t.Context(), "default", []string{"acme", "globex", "acme"},
		[]time.Time{at(-20, 23, 0), at(-20, 23, 0), at(0, 0, 0)}, func(place int, policy, endpoint string, cost int64) {
			assert.Equal(t, "monthly/#7 GET /a", policy+" "+endpoint)
			assert.NotEqual(t, 1, place)
			spent = append(spent, cost)
		})
	require.NoError(t, err)
	today := int64(now.Sub(midnight)/time.Minute) + 1
	assert.ElementsMatch(t, []int64{today, today + int64(at(0, 0, 0).Sub(at(-20, 23, 0))/time.Minute)}, spent)
}

func TestUsageThatAnotherNamespaceMayHaveCountedIsNotSpent(t *testing.T) {
	s, pool := overTime(t, time.Now().UTC())
	count := func() (n int) {
		require.NoError(t, s.UsageSpent(t.Context(), "default", []string{"acme"}, []time.Time{time.Now().Add(-time.Hour)},
			func(int, string, string, int64) { n++ }))
		return n
	}
	require.Equal(t, 1, count())
	pgtest.Exec(t, pool, `INSERT INTO rate_limiter.tenant_tiers
		SELECT now(), now(), now(), id, 'other', 'gold', 'row' FROM rate_limiter.usage_names WHERE name = 'acme'`)
	assert.Zero(t, count())
}
