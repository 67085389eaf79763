package abuse

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/observe/usage"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// world is a database with the minutes that a leader has unpacked, and a detector with the rights of a keeper.
type world struct {
	*testing.T
	pool   *pgxpool.Pool // as an administrator
	keeper *pgx.Conn
	log    strings.Builder
	end    time.Time // of the minutes that past makes, the same for all tenants until detect; zero: to be read
}

func newWorld(t *testing.T) *world {
	t.Helper()
	s := pgtest.Granted(t)
	w := &world{T: t, pool: pgtest.Pool(t, s.RoleDSN("postgres"))}
	conn, err := pgx.Connect(t.Context(), s.RoleDSN(pgtest.Keeper))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(t.Context()) })
	w.keeper = conn
	w.exec(`SELECT rate_limiter.keep_usage_partitions()`)
	w.exec(`INSERT INTO rate_limiter.usage_names (name) VALUES ('')`)
	return w
}

func (w *world) exec(sql string, args ...any) {
	w.Helper()
	_, err := w.pool.Exec(w.Context(), sql, args...)
	require.NoError(w, err, "%s", sql)
}

// text returns the result of a query for one text.
func (w *world) text(sql string, args ...any) (text string) {
	w.Helper()
	require.NoError(w, w.pool.QueryRow(w.Context(), sql, args...).Scan(&text), "%s", sql)
	return text
}

// now returns the time of the database.
func (w *world) now() (now time.Time) {
	w.Helper()
	require.NoError(w, w.pool.QueryRow(w.Context(), `SELECT clock_timestamp()`).Scan(&now))
	return now
}

// minute is what a tenant did in a minute.
type minute struct {
	admitted, denied, unavailable int64
	addresses                     int // that were denied
}

// past makes the last minutes of the database's clock, which ends them, those of a tenant. The mark is before them.
func (w *world) past(tenant string, minutes ...minute) {
	w.Helper()
	if w.end.IsZero() {
		err := w.pool.QueryRow(w.Context(), `SELECT date_trunc('minute', clock_timestamp() - $1::interval)`, scoreAfter).
			Scan(&w.end)
		require.NoError(w, err)
	}
	begin := w.end.Add(-time.Duration(len(minutes)) * time.Minute)
	w.exec(`INSERT INTO rate_limiter.usage_names (name) VALUES ($1), ('GET /a') ON CONFLICT DO NOTHING`, tenant)
	w.exec(`DELETE FROM rate_limiter.usage_minutes
		WHERE tenant = (SELECT id FROM rate_limiter.usage_names WHERE name = $1)`, tenant)
	w.exec(`DELETE FROM rate_limiter.abuse_denials WHERE tenant = $1`, tenant)
	for i, m := range minutes {
		at := begin.Add(time.Duration(i) * time.Minute)
		w.exec(`INSERT INTO rate_limiter.usage_minutes
				(at, admitted, soft, denied, shadow_denied, cost, tenant, endpoint, policy)
			SELECT $1, $2, 0, $3, 0, 0, t.id, e.id, p.id
			FROM rate_limiter.usage_names t, rate_limiter.usage_names e, rate_limiter.usage_names p
			WHERE t.name = $4 AND e.name = 'GET /a' AND p.name = ''`, at, m.admitted, m.denied+m.unavailable, tenant)
		var sketch, empty usage.Sketch
		for i := range min(m.addresses, len(sketch)) {
			sketch[i] = 5 // of about 2,800 names
		}
		w.exec(`INSERT INTO rate_limiter.abuse_denials
				(at, tenant, limited, penalized, unavailable, users, addresses, credentials)
			VALUES ($1, $2, $3, $3, $4, $5, $6, $5)`, at, tenant, m.denied, m.unavailable, empty, sketch)
	}
	w.exec(`UPDATE rate_limiter.abuse_state SET scored_until = $1`, begin)
}

// repeat returns a number of equal minutes.
func repeat(n int, m minute) (all []minute) {
	for range n {
		all = append(all, m)
	}
	return all
}

// detect runs a new detector once.
func (w *world) detect(mode Mode) *Detector {
	w.Helper()
	d := New(Options{
		Mode: mode, DeniedShare: DefaultDeniedShare, ExemptTiers: []string{"internal"},
		Log: slog.New(slog.NewTextHandler(&w.log, nil)),
	})
	require.NoError(w, d.Run(w.Context(), w.keeper))
	w.end = time.Time{}
	require.NotContains(w, w.log.String(), "failed")
	return d
}

// checkEvent compares the data of an event with its published schema.
func (w *world) checkEvent(text string) {
	w.Helper()
	published, err := jsonschema.NewCompiler().Compile("../../../schema/abuse_step.schema.json")
	require.NoError(w, err)
	data, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
	if err == nil {
		err = published.Validate(data)
	}
	assert.NoError(w, err, "%s", text)
}

// step returns the step of a tenant.
func (w *world) step(tenant string) string {
	w.Helper()
	return w.text(`SELECT coalesce((SELECT step FROM rate_limiter.abuse_tenants WHERE tenant = $1), 'new')`, tenant)
}

// penalties returns the detector's overrides of a tenant.
func (w *world) penalties(tenant string) string {
	w.Helper()
	return w.text(`SELECT coalesce(string_agg(kind || coalesce(' ' || factor, '') || ' by ' || author, ', '), '')
		FROM rate_limiter.overrides WHERE source = 'detector' AND tenant = $1`, tenant)
}
