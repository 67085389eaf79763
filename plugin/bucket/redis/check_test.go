package redis

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

func TestAServerIsJudgedByItsInfo(t *testing.T) {
	for _, test := range []struct {
		name      string
		info      string // beside that of a good server
		clustered bool
		want      string // part of the one finding; "" for none
		fatal     bool
	}{
		{"good", "", false, "", false},
		{"good cluster", "redis_mode:cluster", true, "", false},
		{"oldest", "redis_version:6.2.0", false, "", false},
		{"too old", "redis_version:6.0.16", false, "is Redis 6.0.16: 6.2 or newer is needed", true},
		{"much too old", "redis_version:5.0.7", false, "is Redis 5.0.7", true},
		{"newer", "redis_version:8.2.1", false, "", false},
		{"a version that is none", "redis_version:unstable", false, "", false},
		{"shows nothing", "redis_version:", false, "", false},
		{"cluster behind host", "redis_mode:cluster", false, "name some of its nodes in redis.cluster_nodes", true},
		{"no cluster behind cluster_nodes", "", true, "use redis.host", true},
		{"sentinel", "redis_mode:sentinel", false, "name it in redis.sentinel_nodes", true},
		{"replica", "role:slave\r\nslave_read_only:1", false, "is a replica and denies writes", false},
		{"writable replica", "role:slave\r\nslave_read_only:0", false, "is a replica that answers writes", false},
		{"evicts", "maxmemory_policy:allkeys-lru", false, "has maxmemory-policy allkeys-lru", false},
	} {
		info := "# Server\r\nredis_version:7.0.15\r\nredis_mode:standalone\r\nrole:master\r\nmaxmemory_policy:noeviction\r\n" + test.info
		warnings, faults := judge(parseInfo(info), test.clustered)
		all := slices.Concat(warnings, faults)
		switch {
		case test.want == "" && len(all) > 0:
			t.Errorf("%s: %v", test.name, all)
		case test.want != "" && (len(all) != 1 || !strings.Contains(all[0], test.want) ||
			(len(faults) == 1) != test.fatal):
			t.Errorf("%s: %v, want %q (fatal: %t)", test.name, all, test.want, test.fatal)
		}
	}
}

func TestAHealthyRedisIsReadyWithItsScriptBeforeTheFirstCall(t *testing.T) {
	server := redistest.Single(t)
	client := server.Client(t)
	r, log := watching(t, countScript)
	c, release, err := r.acquire(at(server, true))
	require.NoError(t, err)
	defer release()
	await.That(t, "it is reported as ready",
		func() bool { return strings.Contains(log.String(), `"msg":"Redis is ready"`) })
	must(t, client, "config", "resetstat")
	require.NoError(t, run(c, "k"))
	if calls := calls(t, client); calls["evalsha"] != 1 || calls["script|load"] != 0 || calls["info"] != 0 {
		t.Errorf("the first call is these: %v", calls)
	}
	if text := log.String(); strings.Contains(text, "WARN") || strings.Contains(text, "ERROR") {
		t.Errorf("there is nothing to complain about: %s", text)
	}
}

func TestAWrongTopologyIsDeniedUntilItIsRight(t *testing.T) {
	t.Parallel()
	alone := redistest.Single(t)
	nodes := redistest.Cluster(t, 3, 0)
	for want, block := range map[string]schema.Redis{
		"is part of a Redis Cluster": at(nodes.Masters[0], true),
		"names a Redis that is not part of a Redis Cluster": {
			ClusterNodes: []schema.RedisClusterNode{{IP: alone.Host, Port: int64(alone.Port)}},
			SendTimeout:  30_000, ReadTimeout: 30_000,
		},
	} {
		r, log := watching(t, countScript)
		c, release, err := r.acquire(block)
		require.NoError(t, err)
		defer release()
		await.That(t, "it is denied", func() bool { return strings.Contains(log.String(), "no limit can be counted") })
		err = run(c, "k")
		assert.NoError(t, wantKind(err, Rejected))
		if !strings.Contains(log.String(), want) || err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is wanted in the error (%v) and in the log:\n%s", want, err, log)
		}
	}
}

func TestADeniedRedisIsUsedOnceItIsFitForIt(t *testing.T) {
	c := checked(t, newScript(countScript), at(redistest.Single(t), true))
	c.reject(errors.New("not yet"))
	assert.NoError(t, wantKind(run(c, "k"), Rejected))
	if _, _, err := c.check(t.Context()); err != nil {
		t.Fatal(err)
	}
	assert.NoError(t, run(c, "k"))
}

func TestAFindingIsLoggedOnceThoughItIsLookedForAgain(t *testing.T) {
	server := redistest.Single(t, "--maxmemory-policy", "allkeys-lru", "--requirepass", "hunter2")
	block := at(server, true)
	r, log := watching(t, countScript)
	_, release, err := r.acquire(block)
	require.NoError(t, err)
	defer release()
	await.That(t, "the failure is logged", func() bool { return strings.Contains(log.String(), "cannot be checked") })
	client := server.Client(t)
	must(t, client, "auth", "hunter2")
	must(t, client, "config", "set", "requirepass", "")
	await.That(t, "the check succeeds at last", func() bool { return strings.Contains(log.String(), "Redis is ready") })
	for _, once := range []string{"cannot be checked", "has maxmemory-policy allkeys-lru"} {
		if n := strings.Count(log.String(), once); n != 1 {
			t.Errorf("%q is logged %d times:\n%s", once, n, log)
		}
	}
}

func TestAUserWhoMayNotRunInfoIsServedAllTheSame(t *testing.T) {
	server := redistest.Single(t)
	must(t, server.Client(t), "acl", "setuser", "kong", "on", ">hunter2", "~*", "+evalsha", "+script|load", "+incr")
	block := at(server, true)
	block.Username, block.Password = "kong", "hunter2"
	c := open(t, newScript(countScript), block)
	warnings, rejection, err := c.check(t.Context())
	if len(warnings) != 1 || !strings.Contains(warnings[0], "may not run INFO") || rejection != nil || err != nil {
		t.Errorf("%q, %v, %v", warnings, rejection, err)
	}
	assert.NoError(t, run(c, "k"))
}
