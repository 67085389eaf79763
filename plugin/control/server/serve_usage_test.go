package server

import (
	"context"
	"maps"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/observe/usage"
)

// What this process decides counts like what the plugin decides, and its routes are those of its file.
func TestServeReportsTheUsageOfItsDecisions(t *testing.T) {
	dsn := pgtest.Shared(t).Database(t)
	t.Cleanup(func() { wantReported(t, dsn) }) // after the end of the process, which reports what was counted last
	d := deciding(t, strings.Replace(onPort(t, 1), "strategy: redis", "strategy: local", 1), func(s *Settings) {
		s.Database, s.Usage = Database{DSN: dsn}, true
	})
	for _, endpoint := range []string{"records", "records", "invented"} {
		var x admit.Exchange
		request := &admit.CallerRequest{Caller: identity.Caller{Tenant: "acme"}}
		request.Method, request.Path, request.Route = admit.Target(endpoint)
		if d.decider.Admit(t.Context(), request, &x) != nil || x.Decision.Denied() {
			t.Fatalf("%s: %+v", endpoint, x.Decision)
		}
	}
}

// wantReported checks what Postgres has of two requests of the route records, and one of a route that does not exist.
func wantReported(t *testing.T, dsn string) {
	t.Helper()
	var name string
	var text []byte
	err := pgtest.Pool(t, dsn).QueryRow(context.Background(), `SELECT node, payload FROM rate_limiter.usage_batches`).
		Scan(&name, &text)
	require.NoError(t, err)
	var batch usage.Batch
	require.NoError(t, batch.UnmarshalBinary(text))
	requests := map[string]int64{}
	for _, row := range batch.Rows {
		if row.Tenant != "acme" {
			t.Errorf("a row of %+v", row.Key)
		}
		if row.Policy == "" {
			requests[row.Endpoint] = row.Admitted
		}
	}
	if want := map[string]int64{"records": 2, "": 1}; !maps.Equal(requests, want) || !strings.Contains(name, "/control/") {
		t.Errorf("%s has counted %v, want %v", name, requests, want)
	}
}
