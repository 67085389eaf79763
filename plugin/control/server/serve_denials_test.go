package server

import (
	"context"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/node/routeconfig"
)

// What this process denies is recorded as what the plugin denies, so that people find it in the same list.
func TestServeReportsTheDenialsOfItsDecisions(t *testing.T) {
	dsn := pgtest.Shared(t).Database(t)
	t.Cleanup(func() { wantDenials(t, dsn, 3) }) // after the end of the process, which reports what was denied last
	d := deciding(t, strings.Replace(onPort(t, 1), "strategy: redis", "strategy: local", 1), func(s *Settings) {
		s.Database, s.DenialRecent = Database{DSN: dsn}, true
	})
	for range 43 {
		var x admit.Exchange
		request := &admit.CallerRequest{Caller: identity.Caller{Tenant: "acme", User: "u_1"}, Route: "records"}
		require.NoError(t, d.decider.Admit(t.Context(), request, &x))
	}
}

// wantDenials checks what Postgres has of denials of one limit.
func wantDenials(t *testing.T, dsn string, want int64) {
	t.Helper()
	list, err := rows.New(pgtest.Pool(t, dsn)).Denials(context.Background(), rows.DenialFilter{})
	require.NoError(t, err)
	var count int64
	for _, d := range list {
		if count += d.Count; d.Tenant != "acme" || d.Policy != "per-route" || d.Endpoint != "records" || d.User == "u_1" {
			t.Errorf("a denial is %+v", d)
		}
	}
	if count != want {
		t.Errorf("%d denials are recorded, want %d", count, want)
	}
}

func TestServeRecordsNoDenialsIfThatIsOffOrItDecidesNothing(t *testing.T) {
	for _, s := range []*Settings{{DenialRecent: true}, {Config: &routeconfig.Config{}}} {
		if s.newDenialRecord("n1", slog.New(slog.DiscardHandler)) != nil {
			t.Errorf("%+v records denials", s)
		}
	}
}
