package rows

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

func TestTheConstraintsWithAnErrorTextExist(t *testing.T) {
	pool := pgtest.Pool(t, pgtest.Shared(t).Database(t))
	rows, _ := pool.Query(t.Context(), `SELECT conname::text FROM pg_constraint UNION SELECT relname::text FROM pg_class
		UNION SELECT tgname::text FROM pg_trigger
		UNION SELECT c || check_ FROM unnest(ARRAY['audit_actor', 'overrides_author', 'webhooks_created_by']) c,
			unnest(ARRAY['_token', '_seen']) check_
		UNION SELECT unnest(ARRAY['tokens_lifetime', 'tokens_overlap'])`) // which functions raise
	exist, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	for _, name := range append(slices.Collect(maps.Keys(constraints)), slices.Collect(maps.Keys(conflicts))...) {
		assert.True(t, slices.Contains(exist, name), "there is no constraint %s", name)
	}
}

func TestAuditKindsAreThoseThatTheDatabaseWrites(t *testing.T) {
	pool := pgtest.Pool(t, pgtest.Shared(t).Database(t))
	rows, err := pool.Query(t.Context(), `SELECT split_part(encode(tgargs, 'escape'), '\000', 1) FROM pg_trigger
		WHERE tgfoid = 'rate_limiter.record()'::regprocedure
		UNION SELECT (regexp_match(prosrc, 'reason\(\), ''''\), ''([a-z_]+)'''))[1] FROM pg_proc
		WHERE prosrc LIKE '%INSERT INTO rate_limiter.audit%' AND oid <> 'rate_limiter.record()'::regprocedure`)
	require.NoError(t, err)
	written, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	slices.Sort(written)
	listed := slices.Sorted(slices.Values(AuditKinds))
	assert.True(t, slices.Equal(written, listed), "the database writes %q, AuditKinds has %q", written, listed)
}

// The patterns match the parts of a CHECK: a range, a length in bytes, a pattern with a length, and a list of values.
var (
	between = regexp.MustCompile(`>= '?(-?\d+)'?(?:::bigint)?\) AND \(\(?"?\w+"?\)? <= '?(\d+)'?`)
	longest = regexp.MustCompile(`octet_length\("?\w+"?\) <= (\d+)`)
	pattern = regexp.MustCompile(`~ '\^\[A-Za-z0-9_\.-\]\{[01],(\d+)\}\$'`)
	quoted  = regexp.MustCompile(`'([^']*)'::text`)
)

func TestTheDatabaseHasTheDeclaredBoundsOfARow(t *testing.T) {
	pool := pgtest.Pool(t, pgtest.Shared(t).Database(t))
	wantDeclaredBounds(t, pool, "policies_", schema.Fields[schema.Policy]())
	wantDeclaredBounds(t, pool, "overrides_", schema.Fields[schema.Override]())
	wantDeclaredBounds(t, pool, "tenants_", schema.Fields[schema.Tenant]())
	wantDeclaredBounds(t, pool, "costs_", schema.Fields[schema.Cost]())
}

// wantDeclaredBounds compares the constraint of each field with its declaration.
func wantDeclaredBounds[T any](t *testing.T, pool *pgxpool.Pool, prefix string, fields []schema.Field[T]) {
	t.Helper()
	for _, f := range fields {
		if f.Type == "boolean" {
			continue
		}
		var check string
		err := pool.QueryRow(t.Context(),
			`SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conname = $1`, prefix+f.Name).Scan(&check)
		if err != nil {
			t.Errorf("%s%s has no constraint: %v", prefix, f.Name, err)
			continue
		}
		if f.Name == "endpoint" {
			err := pool.QueryRow(t.Context(), `SELECT prosrc FROM pg_proc WHERE proname = 'is_endpoint'`).Scan(&check)
			if err != nil || !strings.Contains(check, "'"+f.Pattern+"'") {
				t.Errorf("%s is %s (%v), want the pattern %s", f.Name, check, err, f.Pattern)
			}
		}
		if f.Name != "ip" { // whose constraint parses it
			wantBounds(t, f, check)
		}
	}
}

func wantBounds[T any](t *testing.T, f schema.Field[T], check string) {
	t.Helper()
	got, want := "", ""
	switch {
	case f.Type == "integer":
		got, want = strings.Join(groups(between, check), " to "), fmt.Sprint(f.Min, " to ", f.Max)
	case len(f.OneOf) > 0:
		var values []string
		for _, m := range quoted.FindAllStringSubmatch(check, -1) {
			if m[1] != "" {
				values = append(values, m[1])
			}
		}
		got, want = fmt.Sprint(values), fmt.Sprint(f.OneOf)
	case f.MaxLength > 0:
		got = strings.Join(append(groups(longest, check), groups(pattern, check)...), "")
		want = fmt.Sprint(f.MaxLength)
	}
	assert.Equal(t, want, got, "%s in the database, by %s", f.Name, check)
}

// groups returns the matches of the groups of a pattern.
func groups(pattern *regexp.Regexp, text string) []string {
	if m := pattern.FindStringSubmatch(text); m != nil {
		return m[1:]
	}
	return nil
}

func TestGoAndSQLAgreeOnCanonicalEndpoints(t *testing.T) {
	pool := pgtest.Pool(t, pgtest.Shared(t).Database(t))
	for _, endpoint := range []string{
		"", "GET /", "GET /{a}", "GET /{a}/b/{c}", "GET /{a", "GET /a}", "GET /{}{b}", "GET /{a{b}c}", "* /{ä}/*",
	} {
		var want string
		require.NoError(t, pool.QueryRow(t.Context(), `SELECT rate_limiter.canonical_endpoint($1)`, endpoint).Scan(&want))
		assert.Equal(t, want, canonical(PolicyKey{Endpoint: endpoint}).Endpoint, "%q in Go and in SQL", endpoint)
	}
}

func TestErrorOfAnUnreachableServerHasNoPassword(t *testing.T) {
	for _, dsn := range []string{
		"postgres://ann:s3cret@127.0.0.1:1/db?sslmode=disable&connect_timeout=1",
		"host=127.0.0.1 port=1 user=ann password=s3cret dbname=db",
	} {
		pool, err := pgxpool.New(t.Context(), dsn)
		require.NoError(t, err)
		_, err = New(pool).Tiers(t.Context(), TierFilter{})
		pool.Close()
		if err == nil || strings.Contains(err.Error(), "s3cret") || !strings.Contains(err.Error(), "list tiers") {
			t.Errorf("%v, want the operation, and no password", err)
		}
		var invalid *InvalidError
		assert.False(t, errors.As(err, &invalid), "%v does not concern a value", err)
	}
}

func TestARejectedCommitIsNotUncertainInAnyLanguage(t *testing.T) {
	for severity, want := range map[string]bool{"ERROR": false, "FATAL": true} {
		err := uncertain(&pgconn.PgError{Severity: "FEHLER", SeverityUnlocalized: severity, Code: "40001"})
		assert.Equal(t, want, errors.As(err, new(*UncertainError)), "%s: it is uncertain", severity)
	}
}
