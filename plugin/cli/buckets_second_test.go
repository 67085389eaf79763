package cli

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
)

// onTwo returns a decK file whose addresses have a Redis of their own.
func onTwo(t *testing.T, main, second *redistest.Server) string {
	t.Helper()
	text, err := os.ReadFile(onRedis(t, main))
	require.NoError(t, err)
	block := fmt.Sprintf("    address_redis: {host: %s, port: %d}\n    tiers:", second.Host, second.Port)
	file := filepath.Join(t.TempDir(), "kong.yml")
	require.NoError(t, os.WriteFile(file, []byte(strings.Replace(string(text), "    tiers:", block, 1)), 0o600))
	return file
}

func TestBucketsOfAnAddressAreShownAndResetInTheRedisOfAddresses(t *testing.T) {
	main, second := redistest.Single(t), redistest.Single(t, "--requirepass", "of-addresses")
	file := onTwo(t, main, second)
	x := &terminal{t: t, env: map[string]string{
		databaseVariable: pgtest.Shared(t).Database(t), addressRedisPasswordVariable: "of-addresses",
	}}
	subject := []string{"--config", file, "--config-only", "--tenant", "acme", "--ip", "192.0.2.1"}
	used := func() int64 {
		t.Helper()
		x.output.Reset()
		var shown []shownBucket
		text := x.must(append([]string{"buckets", "show", "-o", "json"}, subject...)...)
		require.NoError(t, json.Unmarshal([]byte(text), &shown))
		for _, b := range shown {
			if b.Policy == "per-user" {
				return b.Used
			}
		}
		t.Fatalf("%+v: want the bucket of the address", shown)
		return 0
	}
	spendWith(t, file, "of-addresses", identity.Identity{
		Tenant: identity.Name{Kind: identity.Tenant, ID: "acme"}, User: identity.Name{Kind: identity.IP, ID: "192.0.2.1"},
		IP: "192.0.2.1", Method: "GET", Path: "/",
	}, 3)
	if got := used(); got != 3 {
		t.Errorf("%d is used of the bucket of the address, want 3", got)
	}
	x.must(append([]string{"buckets", "reset", "--reason", "a test"}, subject...)...)
	if got := used(); got != 0 {
		t.Errorf("%d is used after the reset", got)
	}
	delete(x.env, addressRedisPasswordVariable)
	x.output.Reset()
	code := x.call(append([]string{"buckets", "show"}, subject...)...)
	if code != exitFailed || !strings.Contains(x.output.String(), second.Address()) {
		t.Errorf("exit code %d, want %d and the Redis that does not answer, in\n%s", code, exitFailed, x.output.String())
	}
}
