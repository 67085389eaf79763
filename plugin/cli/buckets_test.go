package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/faultproxy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/redis"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/node/routeconfig"
)

func TestBucketsPerUserAreShownOnlyForAUser(t *testing.T) {
	file := onRedis(t, redistest.Single(t))
	x := &terminal{t: t}
	code := x.call("buckets", "show", "--config", file, "--config-only", "--tenant", "acme")
	if text := x.output.String(); code != 0 || strings.Contains(text, "per-user") || !strings.Contains(text, "daily") {
		t.Errorf("exit code %d, output\n%s", code, text)
	}
}

func TestBucketsOfATenantWithManyEndpointsAreShownAndReset(t *testing.T) {
	const endpoints = 300 // one request of Redis has room for 255 records
	server, limits := redistest.Single(t), strings.Builder{}
	for i := range endpoints {
		limit := "      - {name: e, scope: tenant+endpoint, endpoint: GET /e%d, limit: 9, window_size: 86400}\n"
		fmt.Fprintf(&limits, limit, i)
	}
	text := fmt.Sprintf("_format_version: \"3.0\"\nplugins:\n- name: tenant-rate-limiting\n  config:\n"+
		"    strategy: redis\n    redis: {host: 127.0.0.1, port: %d}\n"+
		"    tiers:\n    - name: essentials\n      limits:\n%s", server.Port, &limits)
	file := filepath.Join(t.TempDir(), "kong.yml")
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	x := &terminal{t: t, env: map[string]string{databaseVariable: pgtest.Shared(t).Database(t)}}
	shown := x.must("buckets", "show", "--config", file, "--config-only", "--tenant", "acme")
	if got := strings.Count(shown, "GET /e"); got != endpoints {
		t.Errorf("%d buckets are shown, want %d", got, endpoints)
	}
	x.must("buckets", "reset", "--config", file, "--config-only", "--tenant", "acme", "--reason", "a test")
}

// onRedis is the decK file of the buckets, with the address of a server.
func onRedis(t *testing.T, server *redistest.Server) string {
	t.Helper()
	return onPort(t, server.Port)
}

func onPort(t *testing.T, port int) string {
	t.Helper()
	text, err := os.ReadFile("testdata/ratelimit/buckets.yml")
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "kong.yml")
	text = []byte(strings.Replace(string(text), "port: 1", fmt.Sprint("port: ", port), 1))
	require.NoError(t, os.WriteFile(file, text, 0o600))
	return file
}

// spend spends from all buckets of a request.
func spend(t *testing.T, file string, id identity.Identity, cost int64) {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	read, err := routeconfig.Read(text, file)
	require.NoError(t, err)
	block := &read.Configs[0].Redis // a busy machine is no outage
	block.ConnectTimeout, block.SendTimeout, block.ReadTimeout = redisTimeout, redisTimeout, redisTimeout
	snapshot, err := resolve.FromConfig(read.Configs[0].Config)
	require.NoError(t, err)
	redis := redis.NewRegistry(slog.New(slog.DiscardHandler), nil)
	store, closeStore, err := redis.Open(*block)
	require.NoError(t, err)
	defer closeStore()
	var r resolve.Resolution
	id.Cost = cost
	snapshot.ResolveAt(&id, 0, &r)
	statuses := make([]decision.Status, len(r.Bounds))
	require.NoError(t, store.Take(context.Background(), r.Bounds, statuses))
	for i := range statuses {
		if !statuses[i].Charged {
			t.Fatalf("%s was not charged: %+v", r.Bounds[i].Policy.Name, statuses[i])
		}
	}
}

func TestOperatorsWaitForARedisThatIsTooSlowForRequestsAndRetry(t *testing.T) {
	for name, harm := range map[string]func(*faultproxy.Proxy){
		"slow":                  func(p *faultproxy.Proxy) { p.Delay(150 * time.Millisecond) },
		"one connection breaks": func(p *faultproxy.Proxy) { p.CutReplies(1, faultproxy.Reset) },
	} {
		t.Run(name, func(t *testing.T) {
			proxy := faultproxy.New(t, redistest.Single(t).Address())
			harm(proxy)
			x := &terminal{t: t}
			code := x.call("buckets", "show", "--config", onPort(t, proxy.Port()), "--config-only", "--tenant", "acme")
			if text := x.output.String(); code != 0 || !strings.Contains(text, "daily") {
				t.Errorf("exit code %d, output\n%s", code, text)
			}
		})
	}
}

func TestBucketsAreShownForAllEndpointsAndNothingIsSpent(t *testing.T) {
	file := onRedis(t, redistest.Single(t))
	acme := identity.Identity{
		Tenant: identity.Name{Kind: identity.Tenant, ID: "acme"}, User: identity.Name{Kind: identity.User, ID: "u_42"},
		Method: "POST", Path: "/records/7", Route: "records",
	}
	spend(t, file, acme, 3)
	for range 2 {
		x := &terminal{t: t}
		code := x.call("buckets", "show", "--config", file, "--config-only",
			"--tenant", "acme", "--user", "u_42", "-o", "json")
		var shown []shownBucket
		if err := json.Unmarshal(x.output.Bytes(), &shown); err != nil || code != 0 {
			t.Fatalf("exit code %d, %v, output\n%s", code, err, x.output.String())
		}
		got := map[string]string{}
		for _, b := range shown {
			got[b.Policy+" "+b.Endpoint] = fmt.Sprint(b.Subject, ", ", b.Used)
		}
		for name, want := range map[string]string{
			"daily ": "the tenant, 3", "writes POST /records/{id}": "the tenant, 3", "per-user ": "user u_42, 3",
			"per-route records": "the tenant, 3", "per-route search": "the tenant, 0",
		} {
			if got[name] != want {
				t.Errorf("bucket %s is %q, want %q", name, got[name], want)
			}
		}
		if len(got) != 5 {
			t.Errorf("shown are %v, want five buckets of the tenant", got)
		}
	}
}

func TestLocalBucketsAreNotLookedFor(t *testing.T) {
	x := &terminal{t: t}
	code := x.call("buckets", "show", "--config", "testdata/ratelimit/kong.yml", "--plugin-route", "search",
		"--config-only", "--tenant", "acme")
	if text := x.output.String(); code != exitFailed || !strings.Contains(text, "strategy is local") {
		t.Errorf("exit code %d, output\n%s", code, text)
	}
}

func TestAResetEmptiesTheBucketsOfOneTenantAndIsAudited(t *testing.T) {
	file := onRedis(t, redistest.Single(t))
	x := &terminal{t: t, env: map[string]string{databaseVariable: pgtest.Shared(t).Database(t)}}
	id := func(tenant string) identity.Identity {
		return identity.Identity{
			Tenant: identity.Name{Kind: identity.Tenant, ID: tenant},
			User:   identity.Name{Kind: identity.User, ID: "u_42"},
			Method: "POST", Path: "/records/7", Route: "records",
		}
	}
	spend(t, file, id("acme"), 3)
	spend(t, file, id("beta"), 2)
	used := func(tenant string) (used map[string]int64) {
		x.output.Reset()
		code := x.call("buckets", "show", "--config", file, "--tenant", tenant, "--user", "u_42", "-o", "json")
		var shown []shownBucket
		if err := json.Unmarshal(x.output.Bytes(), &shown); err != nil || code != 0 {
			t.Fatalf("exit code %d, %v, output\n%s", code, err, x.output.String())
		}
		used = map[string]int64{}
		for _, b := range shown {
			used[b.Policy] += b.Used
		}
		return used
	}
	reset := []string{"buckets", "reset", "--config", file, "--tenant", "acme", "--reason", "billed twice"}
	x.must(append(reset, "--policy", "daily")...)
	if got := used("acme"); got["daily"] != 0 || got["writes"] != 3 {
		t.Errorf("after the reset of daily acme has used %v", got)
	}
	x.must(append(reset, "--user", "u_42")...)
	for name, n := range used("acme") {
		if n != 0 {
			t.Errorf("after the reset of all acme has used %d of %s", n, name)
		}
	}
	if got := used("beta"); got["daily"] != 2 || got["per-user"] != 2 {
		t.Errorf("another tenant has used %v", got)
	}
	text := x.must("audit", "--tenant", "acme", "-o", "json")
	if strings.Count(text, "billed twice") != 2 || !strings.Contains(text, "ann@laptop") {
		t.Errorf("want two resets by ann@laptop in the audit:\n%s", text)
	}
	if !strings.Contains(text, `"user": "u_42"`) || !strings.Contains(text, `"description": `) {
		t.Errorf("the audit shows the buckets differently than of a reset by the REST API:\n%s", text)
	}
	if text := x.must("audit", "--tenant", "acme"); !strings.Contains(text, `"policy":"daily","remaining":14997,`) {
		t.Errorf("the audit is\n%s", text)
	}
}
