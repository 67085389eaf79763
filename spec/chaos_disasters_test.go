package spec

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/faultproxy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
)

var disasters = []disaster{
	{name: "Redis is killed and starts again empty", stage: killed, refills: 1},
	{name: "Redis hangs", stage: hung},
	{name: "one of two pools hangs, and starts again empty", stage: poolHung, refills: 1},
	{name: "Redis is slow", stage: behindProxy(silenceLasts,
		func(p *faultproxy.Proxy) { p.Delay(2 * chaosTimeout) })},
	{name: "replies end in a reset", stage: behindProxy(failureLasts,
		func(p *faultproxy.Proxy) { p.CutReplies(-1, faultproxy.Reset) })},
	{
		name:  "replies end in the middle and nothing follows",
		stage: behindProxy(silenceLasts, func(p *faultproxy.Proxy) { p.CutReplies(-1, faultproxy.Hang) }),
	},
	{name: "Redis answers LOADING", stage: answering("-LOADING Redis is loading the dataset in memory")},
	{name: "Redis answers OOM", stage: answering("-OOM command not allowed when used memory > 'maxmemory'.")},
	{name: "Redis answers READONLY", stage: answering("-READONLY You can't write against a read only replica.")},
	{
		name:  "Redis answers BUSY",
		stage: answering("-BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE."),
	},
	{name: "a cluster answers MOVED to everything", stage: movedStorm, quiet: true},
	{name: "a cluster's master is killed", stage: clusterFailover, quiet: true, refills: 1},
	{name: "a Sentinel's master is killed", stage: sentinelFailover, quiet: true, refills: 1},
	{name: "one of two gateways is cut off from Redis", stage: partitioned},
	{name: "Redis comes and goes ten times", stage: flapping, quiet: true, breaks: flaps},
	{name: "FLUSHALL", stage: flushed, harmless: true, refills: 1},
	{name: "Redis's clock steps forward", stage: clockSteps(10 * time.Minute), harmless: true, refills: 1},
	{name: "Redis's clock steps back", stage: clockSteps(-2 * time.Second), harmless: true},
	{name: "Redis's clock was ahead and is set back", stage: clockWasAhead, harmless: true, refills: 2},
	{name: "the plugin is killed", stage: pluginKilled, harmless: true, kills: true},
}

// single returns the redis block of one Redis.
func single(port int) string { return fmt.Sprintf("host: 127.0.0.1, port: %d", port) }

func killed(t *testing.T) *stage {
	server := redistest.Single(t)
	return &stage{
		redis: []string{single(server.Port)}, lasts: failureLasts, answers: true,
		strike: func(*storm) { server.Kill() },
		end:    func(s *storm) { server.Restart(s.t) },
	}
}

func hung(t *testing.T) *stage {
	server := redistest.Single(t)
	return &stage{
		redis: []string{single(server.Port)}, lasts: silenceLasts,
		strike: func(s *storm) { server.Hang(s.t) },
		end:    func(s *storm) { server.Resume(s.t) },
	}
}

// poolHung stages the Redis of one pool. The bystander's tier has another.
func poolHung(t *testing.T) *stage {
	server, own := redistest.Single(t), redistest.Single(t)
	return &stage{
		redis: []string{single(server.Port)}, pool: single(own.Port), bystander: "beth", lasts: silenceLasts,
		strike: func(s *storm) { server.Hang(s.t) },
		end: func(s *storm) {
			server.Kill()
			server.Restart(s.t)
		},
	}
}

// heal returns a step that ends the faults of a proxy.
func heal(proxy *faultproxy.Proxy) func(*storm) {
	return func(s *storm) {
		if err := proxy.Heal(); err != nil {
			s.t.Fatalf("heal the proxy: %v", err)
		}
	}
}

// behindProxy stages a healthy Redis behind a proxy with a fault.
func behindProxy(lasts time.Duration, harm func(*faultproxy.Proxy)) func(*testing.T) *stage {
	return func(t *testing.T) *stage {
		proxy := faultproxy.New(t, redistest.Single(t).Address())
		return &stage{
			redis: []string{single(proxy.Port())}, lasts: lasts, answers: lasts == failureLasts,
			strike: func(*storm) { harm(proxy) },
			end:    heal(proxy),
		}
	}
}

// answering stages a Redis that answers each script with an error.
func answering(reply string) func(*testing.T) *stage {
	return behindProxy(failureLasts, func(p *faultproxy.Proxy) { p.Answer("evalsha", reply) })
}

// movedStorm stages a cluster whose only master redirects each script to itself.
func movedStorm(t *testing.T) *stage {
	master := redistest.Cluster(t, 1, 0).Masters[0]
	proxy := faultproxy.New(t, master.Address())
	ctx, client := context.Background(), master.Client(t)
	require.NoError(t, client.ConfigSet(ctx, "cluster-announce-port", fmt.Sprint(proxy.Port())).Err())
	slot, err := client.ClusterKeySlot(ctx, bucketKey(chaosTenant)).Result()
	require.NoError(t, err)
	return &stage{
		redis: []string{fmt.Sprintf("cluster_nodes: [{ip: 127.0.0.1, port: %d}]", proxy.Port())},
		lasts: failureLasts, answers: true,
		strike: func(*storm) { proxy.Answer("evalsha", fmt.Sprintf("-MOVED %d %s", slot, proxy.Address())) },
		end:    heal(proxy),
	}
}

func clusterFailover(t *testing.T) *stage {
	nodes := &redisCluster{redistest.Cluster(t, 3, 1)}
	nodes.KeepHealthySlots(t)
	nodes.SetNodeTimeout(t, 500*time.Millisecond)
	key := bucketKey(chaosTenant)
	master := nodes.MasterOf(t, key)
	replica := nodes.ReplicaOf(t, master)
	at := &stage{
		strike: func(*storm) { master.Kill() },
		end:    func(s *storm) { nodes.AwaitMaster(s.t, key, replica) },
	}
	for consumer, tenant := range map[string]string{"beth": "beta", "gus": "gamma", "ida": "ops", "tom": "typo"} {
		if nodes.MasterOf(t, bucketKey(tenant)) != master {
			at.bystander = consumer
		}
	}
	if at.bystander == "" {
		t.Fatal("all tenants are on one master of three")
	}
	known := ""
	for _, m := range nodes.Masters {
		known += fmt.Sprintf("{ip: %s, port: %d}, ", m.Host, m.Port)
	}
	at.redis = []string{"cluster_nodes: [" + known + "]"}
	return at
}

func sentinelFailover(t *testing.T) *stage {
	watched := &redisSentinels{redistest.Sentinel(t)}
	known := ""
	for _, s := range watched.Sentinels {
		known += fmt.Sprintf("{host: %s, port: %d}, ", s.Host, s.Port)
	}
	return &stage{
		redis:  []string{fmt.Sprintf("sentinel_master: %s, sentinel_nodes: [%s]", redistest.MasterName, known)},
		strike: func(*storm) { watched.Master.Kill() },
		end:    func(s *storm) { watched.AwaitMaster(s.t, watched.Replica) },
	}
}

// partitioned stages a Redis from which the first of two nodes is cut off.
func partitioned(t *testing.T) *stage {
	server := redistest.Single(t)
	proxy := faultproxy.New(t, server.Address())
	return &stage{
		redis: []string{single(proxy.Port()), single(server.Port)}, lasts: silenceLasts,
		strike: func(*storm) { proxy.Partition() },
		end:    heal(proxy),
	}
}

const flaps = 10

func flapping(t *testing.T) *stage {
	proxy := faultproxy.New(t, redistest.Single(t).Address())
	return &stage{
		redis: []string{single(proxy.Port())},
		strike: func(s *storm) {
			for range flaps {
				require.NoError(s.t, proxy.Down())
				elapse(s.t.Context(), 500*time.Millisecond)
				require.NoError(s.t, proxy.Heal())
				elapse(s.t.Context(), 500*time.Millisecond)
			}
		},
		end: heal(proxy),
	}
}

func flushed(t *testing.T) *stage {
	server := redistest.Single(t)
	client := server.Client(t)
	return &stage{
		redis: []string{single(server.Port)}, answers: true,
		strike: func(s *storm) {
			require.NoError(s.t, client.FlushAll(s.t.Context()).Err())
		},
		end: func(*storm) {},
	}
}

// clockSteps stages a permanent step of Redis's clock.
func clockSteps(by time.Duration) func(*testing.T) *stage {
	return func(t *testing.T) *stage {
		server := startClocked(t)
		return &stage{
			redis: []string{single(server.Port)}, answers: true,
			strike: func(s *storm) { server.Step(s.t, by) },
			end:    func(*storm) {},
		}
	}
}

// clockWasAhead stages a clock of Redis that is two hours ahead until it is set back. Buckets refill at the first step.
// After the second step, buckets with a time too far ahead start anew.
func clockWasAhead(t *testing.T) *stage {
	server := startClocked(t)
	return &stage{
		redis: []string{single(server.Port)}, lasts: failureLasts, answers: true,
		strike: func(s *storm) { server.Step(s.t, 2*time.Hour) },
		end:    func(s *storm) { server.Step(s.t, 0) },
	}
}

func pluginKilled(t *testing.T) *stage {
	server := redistest.Single(t)
	return &stage{
		redis: []string{single(server.Port)}, answers: true,
		strike: func(s *storm) { s.nodes[0].crash() },
		end:    func(*storm) {},
	}
}
