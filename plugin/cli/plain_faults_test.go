package cli

import (
	"encoding/json"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/node/process"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

func TestAWriteToAReadOnlyDatabaseFailsWithoutASQLSTATE(t *testing.T) {
	dsn := pgtest.Shared(t).Database(t) + "&default_transaction_read_only=on"
	x := &terminal{t: t, env: map[string]string{databaseVariable: dsn}}
	for _, args := range [][]string{
		{"tier", "put", "gold", "--reason", "r"},
		{"tenant", "set", "acme", "--tier", "gold", "--reason", "r"},
		{"token", "create", "ci", "--role", "admin", "--reason", "r"},
	} {
		x.output.Reset()
		if code := x.call(args...); code != exitFailed {
			t.Errorf("%q: exit code %d, want %d", args, code, exitFailed)
		}
		pgtest.WantPlain(t, x.output.String(), "the database is read-only", "default_transaction_read_only")
	}
}

func TestAFailedMigrationNamesItsFileWithoutTheWordsOfTheMigrator(t *testing.T) {
	dsn := pgtest.Shared(t).Empty(t)
	pool := pgtest.Pool(t, dsn)
	pgtest.Exec(t, pool, `CREATE SCHEMA rate_limiter; CREATE TABLE rate_limiter.tiers ()`)
	x := &terminal{t: t, env: map[string]string{databaseVariable: dsn}}
	if code := x.call("migrate", "up"); code != exitFailed {
		t.Errorf("exit code %d, want %d", code, exitFailed)
	}
	text := x.output.String()
	pgtest.WantPlain(t, text, "applied 00001_audit.sql", `apply 00002_policies.sql: relation "tiers" already exists`)
	for _, noise := range []string{"partial migration", "failed to", "ERROR", "type:sql"} {
		if strings.Contains(text, noise) {
			t.Errorf("%q is in\n%s", noise, text)
		}
	}
}

func TestARedisThatIsUnavailableIsDescribedInWords(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	port := listener.Addr().(*net.TCPAddr).Port
	require.NoError(t, listener.Close())
	x := &terminal{t: t}
	code := x.call("buckets", "show", "--config", onPort(t, port), "--config-only", "--tenant", "acme")
	text := x.output.String()
	if code != exitFailed || strings.Contains(text, "redis_") || !strings.Contains(text, fmt.Sprint(port)) ||
		!strings.Contains(text, "cannot connect") {
		t.Errorf("exit code %d, want %d, the address of Redis and no code of a metric, in\n%s", code, exitFailed, text)
	}
}

func TestTheVersionAndFindingsAreShownInEveryFormat(t *testing.T) {
	x := &terminal{t: t}
	var version struct{ Version string }
	if err := json.Unmarshal([]byte(x.must("version", "-o", "json")), &version); err != nil ||
		version.Version != process.Version {
		t.Errorf("version -o json shows %q (%v), want %q", x.output.String(), err, process.Version)
	}
	if got := x.must("version", "-o", "yaml"); !strings.HasPrefix(got, "version: ") {
		t.Errorf("version -o yaml shows %q", got)
	}
	x.stdin = "plugins: [{name: " + schema.Name +
		", config: {tiers: [{name: a, limits: [{name: x, scope: tenant, limit: 0}]}]}}]"
	for _, format := range []string{formatJSON, formatYAML} {
		x.output.Reset()
		if code := x.call("validate", "-", "-o", format); code != exitFailed {
			t.Errorf("validate -o %s: exit code %d, want %d", format, code, exitFailed)
		}
		var files []validated
		require.NoError(t, readAs(format, x.output.String(), &files))
		if len(files) != 1 || files[0].Faults == 0 || files[0].Findings[0].Line != 1 ||
			files[0].Findings[0].Severity != "error" {
			t.Errorf("validate -o %s shows %+v", format, files)
		}
	}
}

// anonymous returns a request without a tenant, which is counted by its address.
func anonymous(address string) identity.Identity {
	return identity.Identity{
		Tenant: identity.Name{Kind: identity.IP, ID: address}, User: identity.Name{Kind: identity.IP, ID: address},
		IP: address, Anonymous: true, Method: "GET", Path: "/",
	}
}

func TestBucketsOfAnAddressWithoutATenantAreShownAndReset(t *testing.T) {
	file := onRedis(t, redistest.Single(t))
	spend(t, file, anonymous("192.0.2.7"), 3)
	x := &terminal{t: t, env: map[string]string{databaseVariable: pgtest.Shared(t).Database(t)}}
	address := []string{"--config", file, "--config-only", "--ip", "192.0.2.7", "-o", "json"}
	used := func() map[string]int64 {
		t.Helper()
		var shown []shownBucket
		require.NoError(t, json.Unmarshal([]byte(x.must(append([]string{"buckets", "show"}, address...)...)), &shown))
		sums := map[string]int64{}
		for _, b := range shown {
			if sums[b.Policy] += b.Used; b.Subject != "ip 192.0.2.7" {
				t.Errorf("%+v: want it to belong to the address", b)
			}
		}
		return sums
	}
	if got := used(); got["daily"] != 3 || got["per-user"] != 3 {
		t.Errorf("used %v, want 3 of daily and of per-user", got)
	}
	x.must(append([]string{"buckets", "reset", "--reason", "an office"}, address...)...)
	if got := used(); got["daily"] != 0 || got["per-user"] != 0 {
		t.Errorf("used %v after the reset, want 0", got)
	}
	if got := x.must("audit", "-o", "json"); !strings.Contains(got, `"ip": "192.0.2.7"`) {
		t.Errorf("the audit does not name the address:\n%s", got)
	}
}
