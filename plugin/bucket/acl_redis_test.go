package bucket_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

func TestWhatIsAdmittedWhileTheACLDeniesACommandIsChargedAfterwards(t *testing.T) {
	server := redistest.Single(t)
	allow := func(rule string) {
		t.Helper()
		require.NoError(t, server.Client(t).Do(t.Context(), "acl", "setuser", "default", rule).Err())
	}
	of, _ := serving(t, time.Minute)
	config := inRedis(server.Port)
	view := opened(t, of, &config)
	spend(t, view, policy.FailOpen, ofTenant)
	allow("-mget")
	const without = 200
	for range without {
		if s := spend(t, view, policy.FailOpen, ofTenant)[0]; s.Failure != decision.Unavailable {
			t.Fatalf("%+v: want that nothing was spent", s)
		}
	}
	allow("+mget")
	shared, release, err := of.OpenCentral(&config)
	require.NoError(t, err)
	t.Cleanup(release)
	read, status := []policy.Bound{daily(t, ofTenant, policy.FailOpen)}, make([]decision.Status, 1)
	await.That(t, "the debt is charged", func() bool {
		require.NoError(t, shared.Peek(t.Context(), read, status))
		return status[0].Source == decision.Redis && status[0].Used == 1+without
	})
}
