package redis

import (
	"net"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/freeport"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// sentinels returns the settings of a master that Sentinels name.
func sentinels(watched *redistest.Watched) schema.Redis {
	block := at(watched.Master, true) // its timeouts
	block.Host, block.Port, block.SentinelMaster = "", 0, redistest.MasterName
	for _, s := range watched.Sentinels {
		block.SentinelNodes = append(block.SentinelNodes, schema.RedisSentinelNode{Host: s.Host, Port: int64(s.Port)})
	}
	return block
}

func TestSentinelLeadsToTheMasterAndToItsSuccessor(t *testing.T) {
	t.Parallel()
	watched := redistest.Sentinel(t)
	c := checked(t, newScript(countScript), sentinels(watched))
	call := func() error { return run(c, "k") }
	require.NoError(t, atOnce(16, 5, call))
	if count, err := watched.Master.Client(t).Get(t.Context(), "k").Int(); err != nil || count != 80 {
		t.Errorf("80 calls counted %d at the master (%v)", count, err)
	}
	watched.Master.Kill()
	if err := atOnce(8, 1, func() error {
		if err := call(); err == nil {
			t.Error("a call succeeds without a master")
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	await.That(t, "calls succeed at the successor, which never saw the script",
		func() bool { return atOnce(16, 1, call) == nil })
	successor := watched.Replica.Client(t)
	must(t, successor, "config", "resetstat")
	assert.NoError(t, atOnce(16, 5, call))
	if calls := calls(t, successor); calls["evalsha"] != 80 || calls["script|load"] != 0 || calls["eval"] != 0 {
		t.Errorf("80 calls are these at the successor: %v", calls)
	}
}

// A master that a failover has replaced may stay up for long before Sentinel demotes it. Here that never happens.
func TestTheWireFollowsAFailoverAtOnceAlthoughTheOldMasterStaysUp(t *testing.T) {
	t.Parallel()
	watched := redistest.Sentinel(t)
	c := checked(t, newScript(countScript), sentinels(watched))
	c.backend.(single).callers.Store(directCallers) // all calls share the wire
	defer c.backend.(single).callers.Store(0)
	require.NoError(t, run(c, "k"))
	must(t, watched.Master.Client(t), "acl", "setuser", "default", "-replicaof", "-slaveof")
	must(t, watched.Sentinels[0].Client(t), "sentinel", "failover", redistest.MasterName)
	successor := watched.Replica.Client(t)
	await.That(t, "the replica becomes the master, which ends its connections", func() bool {
		return strings.Contains(successor.Info(t.Context(), "replication").Val(), "role:master")
	})
	await.That(t, "calls reach the successor", func() bool {
		return run(c, "k") == nil && calls(t, successor)["evalsha"] > 0
	})
	if err := watched.Master.Client(t).Set(t.Context(), "k", 0, 0).Err(); err != nil {
		t.Errorf("the old master does not take writes any more: %v", err)
	}
}

func TestWithoutAnySentinelNothingIsSent(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0") // it answers no command
	require.NoError(t, err)
	defer silent.Close()
	for _, port := range []int{freeport.Port(t), silent.Addr().(*net.TCPAddr).Port} {
		c := open(t, newScript(countScript), schema.Redis{
			SentinelMaster: "m", SentinelNodes: []schema.RedisSentinelNode{{Host: "127.0.0.1", Port: int64(port)}},
			Pipeline: true, ConnectTimeout: 50, SendTimeout: 30_000, ReadTimeout: 30_000,
		})
		if err := atOnce(8, 1, func() error { return wantKind(run(c, "k"), NotSent) }); err != nil {
			t.Error(err)
		}
	}
}
