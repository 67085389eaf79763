package rows_test

import (
	"errors"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// ann is a change with an actor and a reason.
var ann = rows.Change{Actor: "ann", Reason: "more traffic"}

// open returns a store on a new database, and a pool of that database. The test runs beside others.
func open(t *testing.T) (*rows.DB, *pgxpool.Pool) {
	t.Helper()
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.Shared(t).Database(t))
	return rows.New(pool), pool
}

// daily returns a valid policy.
func daily() rows.Policy {
	return rows.Policy{Policy: schema.Policy{Tier: "gold", Limit: schema.Limit{
		Name: "daily", Scope: "tenant", Limit: 1000, WindowSize: 86400,
	}}}
}

func put(t *testing.T, s *rows.DB, p rows.Policy) (rows.Policy, int64) {
	t.Helper()
	written, version, err := s.PutPolicy(t.Context(), ann, p)
	require.NoError(t, err, "put %v", p)
	return written, version
}

// drop deletes the policy of the key of p.
func drop(t *testing.T, s *rows.DB, c rows.Change, p rows.Policy) error {
	found, err := s.Policy(t.Context(), p.Key())
	if err == nil {
		_, err = rows.Delete[rows.Policy](t.Context(), s, c, found.ID, rows.AnyRevision)
	}
	return err
}

// wantInvalid checks that an error is an InvalidError of a field.
func wantInvalid(t *testing.T, what string, err error, field string) {
	t.Helper()
	invalid := new(rows.InvalidError)
	if !errors.As(err, &invalid) || invalid.Field != field || invalid.Problem == "" {
		t.Errorf("%s: %v, want an InvalidError of field %s", what, err, field)
	}
}

func wantConflict(t *testing.T, what string, err error) {
	t.Helper()
	if conflict := new(rows.ConflictError); !errors.As(err, &conflict) || conflict.Problem == "" {
		t.Errorf("%s: %v, want a conflict", what, err)
	}
}

func wantMissing(t *testing.T, what string, err error) {
	t.Helper()
	assert.ErrorAs(t, err, new(*rows.NotFoundError), what)
}
