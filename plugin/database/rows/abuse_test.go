package rows_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

// Operators and the process of the REST API may forgive; the detector's login may not.
func TestOperatorsAndTheAPIMayForgiveATenant(t *testing.T) {
	server := pgtest.Granted(t)
	root := pgtest.Pool(t, server.RoleDSN("postgres"))
	by := rows.Change{Actor: "ann", Reason: "a load test"}
	for _, role := range []string{pgtest.Operator, pgtest.ServerRole} {
		_, err := root.Exec(t.Context(), `WITH penalty AS (
				INSERT INTO rate_limiter.overrides (kind, tenant, reason, author, source, expires_at)
				VALUES ('ban', 'acme', 'abuse detection', 'abuse detector', 'detector', now() + interval '1 hour')
				RETURNING id, expires_at)
			INSERT INTO rate_limiter.abuse_tenants (tenant, state, mode, reason, scored_at, override, override_until)
			SELECT 'acme', '{"step": "ban_1h", "demand": {"mean": 7}}'::jsonb, 'enforce', '', now(), id, expires_at FROM penalty
			ON CONFLICT (tenant) DO UPDATE SET state = excluded.state, override = excluded.override`)
		require.NoError(t, err)
		s := rows.New(pgtest.Pool(t, server.RoleDSN(role)))
		done, _, err := s.ForgiveAbuse(t.Context(), by, "acme", time.Hour)
		if err != nil || len(done.Overrides) != 1 {
			t.Errorf("%s: forgiven %+v (%v)", role, done, err)
		}
		h, err := s.AbuseOf(t.Context(), "acme")
		if err != nil || h.Step != "none" || h.Override != nil || h.Usual != 7 ||
			h.Moves[0].Reason != "forgiven by ann: a load test" {
			t.Errorf("%s: afterwards it is %+v (%v)", role, h, err)
		}
		missing := new(rows.NotFoundError)
		if _, _, err := s.ForgiveAbuse(t.Context(), by, "unscored", time.Hour); !errors.As(err, &missing) {
			t.Errorf("%s: %v, want that nothing is remembered", role, err)
		}
	}
	keeper := rows.New(pgtest.Pool(t, server.RoleDSN(pgtest.Keeper)))
	_, _, err := keeper.ForgiveAbuse(t.Context(), by, "acme", time.Hour)
	assert.Error(t, err, "a keeper forgives")
	_, _, err = keeper.ForgiveAbuse(t.Context(), by, "acme", 31*24*time.Hour)
	assert.Error(t, err, "31 days are accepted")
}
