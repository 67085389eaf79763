package redis

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/logtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

func TestEqualSettingsShareAConnectionAndOthersDoNot(t *testing.T) {
	node := func(ip string) schema.RedisClusterNode { return schema.RedisClusterNode{IP: ip} }
	base := schema.Redis{Host: "a", Password: "p"}
	for _, test := range []struct {
		name string
		a, b schema.Redis
		same bool
	}{
		{"equal", base, base, true},
		{"a default spelled out", base, schema.Redis{Host: "a", Password: "p", Port: 6379, ReadTimeout: 50}, true},
		{"another password", base, schema.Redis{Host: "a", Password: "q"}, false},
		{"another database", base, schema.Redis{Host: "a", Password: "p", Database: 1}, false},
		{"another timeout", base, schema.Redis{Host: "a", Password: "p", ReadTimeout: 51}, false},
		{"a pipeline", base, schema.Redis{Host: "a", Password: "p", Pipeline: true}, false},
		{
			"nodes in another order",
			schema.Redis{ClusterNodes: []schema.RedisClusterNode{node("a"), node("b")}},
			schema.Redis{ClusterNodes: []schema.RedisClusterNode{node("b"), node("a")}},
			true,
		},
		{
			"a host that a cluster does not use",
			schema.Redis{ClusterNodes: []schema.RedisClusterNode{node("a")}},
			schema.Redis{ClusterNodes: []schema.RedisClusterNode{node("a")}, Host: "h"},
			true,
		},
		{"certificates without ssl", base, schema.Redis{Host: "a", Password: "p", SSLVerify: true, ServerName: "s"}, true},
	} {
		r := newRegistry(quiet, nil, newScript(countScript))
		a, releaseA, err := r.acquire(test.a)
		require.NoError(t, err)
		b, releaseB, err := r.acquire(test.b)
		require.NoError(t, err)
		assert.Equal(t, test.same, a == b, "%s: shared is %t", test.name, a == b)
		releaseA()
		releaseB()
	}
}

func TestAConnectionOpensWithItsFirstCallAndClosesWithItsLastUser(t *testing.T) {
	server := redistest.Single(t)
	client := server.Client(t)
	connected := func() int64 {
		return int64(strings.Count(client.Do(context.Background(), "client", "list").String(), " addr="))
	}
	before := connected()
	eachWay(t, func(t *testing.T, pipelined bool) {
		r := newRegistry(quiet, nil, newScript(countScript))
		c, first, err := r.acquire(at(server, pipelined))
		require.NoError(t, err)
		_, second, err := r.acquire(at(server, pipelined))
		require.NoError(t, err)
		if now := connected(); now != before {
			t.Errorf("%d connections before the first call", now-before)
		}
		require.NoError(t, run(c, "k"))
		first()
		first() // once is enough
		assert.NoError(t, run(c, "k"), "a call while another instance uses the connection")
		second()
		await.That(t, "the server has lost the connections", func() bool { return connected() == before })
		assert.NoError(t, wantKind(run(c, "k"), NotSent))
		assert.Empty(t, r.inUse, "connections are still remembered")
		again, release, err := r.acquire(at(server, pipelined))
		require.NoError(t, err)
		defer release()
		if err := run(again, "k"); again == c || err != nil {
			t.Errorf("after the last release, a new connection is wanted that works: %v", err)
		}
	})
}

func TestInstancesThatComeAndGoTogetherLeaveNothingBehind(t *testing.T) {
	server := redistest.Single(t)
	r := newRegistry(quiet, nil, newScript(countScript))
	err := atOnce(16, 20, func() error {
		c, release, err := r.acquire(at(server, true))
		if err != nil {
			return err
		}
		defer release()
		return run(c, "k")
	})
	assert.NoError(t, err)
	assert.Empty(t, r.inUse, "connections are still in use")
}

func TestRunClosesWhatIsStillInUseAndOpensNothingMore(t *testing.T) {
	server := redistest.Single(t)
	r := newRegistry(quiet, nil, newScript(countScript))
	c, release, err := r.acquire(at(server, true))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- r.Run(ctx) }()
	require.NoError(t, run(c, "k"))
	cancel()
	assert.NoError(t, <-ended)
	assert.NoError(t, wantKind(run(c, "k"), NotSent))
	release() // late, and harmless
	if _, _, err := r.acquire(at(server, true)); err == nil {
		t.Error("a connection was opened after the end")
	}
}

// watching runs a registry until the test ends. Its log has all levels, and its second look comes at once.
func watching(t *testing.T, source string) (*Registry, *logtest.Text) {
	t.Helper()
	var text logtest.Text
	r := newRegistry(slog.New(slog.NewJSONHandler(&text, &slog.HandlerOptions{Level: slog.LevelDebug})), nil,
		newScript(source))
	r.pause = time.Millisecond
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- r.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		assert.NoError(t, <-ended, "Run")
	})
	return r, &text
}

func TestNoSecretIsEverPrinted(t *testing.T) {
	server := redistest.Single(t, "--requirepass", "swordfish")
	for _, block := range []schema.Redis{
		{Host: server.Host, Port: int64(server.Port), Username: "default", Password: "hunter2"},
		{ClusterNodes: []schema.RedisClusterNode{{IP: server.Host, Port: int64(server.Port)}}, Password: "hunter2"},
		{
			SentinelNodes: []schema.RedisSentinelNode{{Host: server.Host, Port: int64(server.Port)}}, SentinelMaster: "m",
			Password: "hunter2", SentinelPassword: "hunter2",
		},
	} {
		for _, pipelined := range []bool{true, false} {
			block.Pipeline = pipelined
			r, log := watching(t, countScript)
			c, release, err := r.acquire(block)
			require.NoError(t, err)
			defer release()
			failure := run(c, "k")
			require.Error(t, failure, "a wrong password was accepted")
			await.That(t, "the failure is logged", func() bool { return strings.Contains(log.String(), "cannot be checked") })
			texts := []string{log.String(), failure.Error(), c.settings.place()}
			for _, value := range []any{r, *r.script, c, *c.settings, c.settings, c.backend, failure} {
				for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q"} {
					texts = append(texts, fmt.Sprintf(verb, value))
				}
			}
			for _, text := range texts {
				assert.False(t, strings.Contains(text, "hunter2"), "a password is printed: %s", text)
			}
		}
	}
}
