package spec

import (
	"net/http"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
)

// ban bans acme as an operator.
func (p *plane) ban() {
	p.t.Helper()
	p.operate("override", "add", "--tenant", "acme", "--kind", "ban", "--permanent", "--reason", "abuse")
}

func TestABannedTenantIsNotAdmittedBeforeTheRowsAreLoaded(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	p.ban()
	lock, err := p.rows.Begin(t.Context())
	if err == nil {
		_, err = lock.Exec(t.Context(), `LOCK TABLE rate_limiter.policies IN ACCESS EXCLUSIVE MODE`)
	}
	require.NoError(t, err)
	a := p.launch()
	await.That(t, "it serves", func() bool { return a.status("/healthz") == http.StatusOK })
	for _, path := range []string{check, check + "/batch"} {
		body := checkAcme
		if path != check {
			body = `{"checks":[` + checkAcme + `]}`
		}
		got := a.want(http.StatusServiceUnavailable, nil, http.MethodPost, path, body)
		if !strings.Contains(got.Body, "warming up") || got.Header.Get("Retry-After") != "1" {
			t.Errorf("%s: %s, Retry-After %q", path, got.Body, got.Header.Get("Retry-After"))
		}
	}
	require.NoError(t, lock.Rollback(t.Context()))
	await.That(t, "it has loaded the rows", func() bool { return a.status("/readyz") == http.StatusOK })
	a.wantBanned()
}

// wantBanned fails the test unless acme is banned.
func (a *api) wantBanned() {
	a.t.Helper()
	got := a.want(http.StatusOK, nil, http.MethodPost, check, checkAcme)
	if !strings.Contains(got.Body, `"reason":"banned"`) {
		a.t.Errorf("a banned tenant got %s", got.Body)
	}
}

func TestOnAStandbyABanIsEnforcedAndWritesAreDenied(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	standby := p.postgres.Standby(t)
	a := p.serve("--database", standby.Here(p.postgres, p.dsn))
	a.want(http.StatusOK, nil, http.MethodPost, check, checkAcme)
	p.ban()
	await.That(t, "the ban is enforced", func() bool {
		return strings.Contains(a.want(http.StatusOK, nil, http.MethodPost, check, checkAcme).Body, `"reason":"banned"`)
	})
	got := a.want(http.StatusServiceUnavailable, nil, http.MethodPost, "/v1/ratelimit/policies", policyOf(1000))
	if !strings.Contains(got.Body, "read-only") {
		t.Errorf("a write got %s", got.Body)
	}
	if got := a.want(http.StatusOK, nil, http.MethodGet, "/readyz", ""); !strings.Contains(got.Body, "standby") {
		t.Errorf("/readyz answers %s", got.Body)
	}
	if _, metrics := read(a.metrics, "/metrics"); !strings.Contains(metrics, "rate_limiter_policies_standby 1") {
		t.Error("no metric reports the standby")
	}
	standby.Promote(t)
	promoted, err := pgx.Connect(t.Context(), standby.Here(p.postgres, p.dsn))
	require.NoError(t, err)
	defer promoted.Close(t.Context())
	await.That(t, "it reports", func() bool {
		var live bool
		err := promoted.QueryRow(t.Context(),
			`SELECT EXISTS (SELECT FROM rate_limiter.nodes WHERE node LIKE '%/control/%')`).Scan(&live)
		return err == nil && live
	})
	await.That(t, "writes go on", func() bool {
		got, err := a.send(http.MethodPost, "/v1/ratelimit/policies", policyOf(1000), "Idempotency-Key", "once")
		return err == nil && got.Status == http.StatusCreated
	})
}
