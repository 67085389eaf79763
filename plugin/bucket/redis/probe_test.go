package redis

import (
	"errors"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/freeport"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// askOne takes one bound of a tenant, and answers its status.
func askOne(t *testing.T, store *Store, tenant string) decision.Status {
	t.Helper()
	bounds, statuses := []policy.Bound{hundred(t)}, make([]decision.Status, 1)
	bounds[0].Key.GroupID = tenant
	require.NoError(t, store.Take(t.Context(), bounds, statuses))
	return statuses[0]
}

func TestAServerThatDeniesScriptsIsNotBackBecauseItAnswersPing(t *testing.T) {
	server := redistest.Single(t)
	client := server.Client(t)
	store, _, gates := guarded(t, at(server, true))
	must(t, client, "config", "set", "maxmemory", "1")
	if status := askOne(t, store, "acme"); status.Failure != decision.Unavailable {
		t.Fatalf("a full Redis answers %+v", status)
	}
	gate := gates[store.Name()]
	if store.Probe(t.Context()); gate.in != 2 || gate.failed != 2 {
		t.Errorf("%d of %d calls failed, want the take and the probe", gate.failed, gate.in)
	}
	must(t, client, "config", "set", "maxmemory", "0")
	if store.Probe(t.Context()); gate.in != 3 || gate.failed != 2 {
		t.Errorf("%d of %d calls failed, want all but the probe of the Redis with room", gate.failed, gate.in)
	}
	await.That(t, "what the probe has written expires", func() bool { return client.DBSize(t.Context()).Val() == 0 })
}

func TestAMasterThatDeniesScriptsIsProbedWithAKeyThatItKeeps(t *testing.T) {
	t.Parallel()
	nodes := covering(t, 0)
	store, _, gates := guarded(t, among(nodes, true))
	for _, master := range nodes.Masters {
		must(t, master.Client(t), "config", "set", "maxmemory", "1")
	}
	for tenant := range 12 { // some for each master
		if status := askOne(t, store, strconv.Itoa(tenant)); status.Failure != decision.Unavailable {
			t.Fatalf("a full master answers %+v", status)
		}
	}
	probe := func(why string, failed int) {
		t.Helper()
		for _, master := range nodes.Masters {
			gate := gates[master.Address()]
			gate.in, gate.failed = 0, 0
		}
		store.Probe(t.Context())
		for i, master := range nodes.Masters {
			if gate := gates[master.Address()]; gate.in != 1 || gate.failed != failed {
				t.Errorf("%s, %d of %d probes of master %d failed, want %d of 1", why, gate.failed, gate.in, i, failed)
			}
		}
	}
	probe("while they are full", 1)
	for _, master := range nodes.Masters {
		must(t, master.Client(t), "config", "set", "maxmemory", "0")
	}
	probe("with room again", 0)
}

func TestAServerThatARedirectionLedToIsForgottenWhenItIsGone(t *testing.T) {
	t.Parallel()
	nodes := covering(t, 0)
	_, c, gates := guarded(t, among(nodes, true))
	cluster := c.backend.(*cluster)
	gone, lives, master := net.JoinHostPort("127.0.0.1", strconv.Itoa(freeport.Port(t))), redistest.Single(t).Address(),
		nodes.Masters[1].Address()
	for _, address := range []string{gone, lives, master} {
		if _, err := cluster.serverAt(address); err != nil {
			t.Fatal(err)
		}
	}
	first := gates[master]
	c.Probe(t.Context())
	if gate := gates[gone]; cluster.servers[gone] != nil || gate.failed != 1 || !gate.closed {
		t.Errorf("a server that is gone has the gate %+v: want it closed for good, or it counts as unavailable forever", gate)
	}
	if cluster.servers[lives] == nil || cluster.servers[master] == nil || gates[lives].closed || first.closed {
		t.Error("servers that live are forgotten")
	}
	if gates[lives].in != 1 || first.in != 1 {
		t.Errorf("servers that live are probed %d and %d times, want once", gates[lives].in, first.in)
	}
}

func TestAfterTheEndAClusterMakesNoServers(t *testing.T) {
	t.Parallel()
	_, c, gates := guarded(t, among(covering(t, 0), true))
	require.NoError(t, c.close())
	_, err := c.backend.(*cluster).serverAt("late:6379")
	if !errors.Is(err, redis.ErrClosed) || gates["late:6379"] != nil {
		t.Errorf("%v, and the gate %v, which would never be closed", err, gates["late:6379"])
	}
}

func TestARedisThatTheCheckRejectsCountsAsUnavailableUntilItIsFit(t *testing.T) {
	server := redistest.Single(t)
	store, c, gates := guarded(t, at(server, true))
	c.reject(errors.New("is a Sentinel"))
	gate := gates[store.Name()]
	if status := askOne(t, store, "acme"); status.Failure != decision.Unavailable || gate.failed != 1 {
		t.Errorf("%+v with %d failures reported, want 1", status, gate.failed)
	}
	gate.shut = true
	if status := askOne(t, store, "acme"); status.Wait != 7_000_000 || store.Stats().Failed != 1 {
		t.Errorf("%+v after %d calls, want a wait of 7 s and no other call", status, store.Stats().Failed)
	}
	must(t, server.Client(t), "config", "resetstat")
	store.Probe(t.Context())
	c.reject(errors.New("is a Sentinel still"))
	if calls := calls(t, server.Client(t)); calls["evalsha"] != 0 || gates[store.Name()] != gate || gate.closed {
		t.Errorf("%v were sent, and the gate is another one (%v) or closed (%v)",
			calls, gates[store.Name()] != gate, gate.closed)
	}
	c.reject(nil)
	if status := askOne(t, store, "acme"); status.Source != decision.Redis || !gate.closed {
		t.Errorf("%+v, gate closed: %t", status, gate.closed)
	}
}

func TestTheGateOfARejectionEndsWithTheConnection(t *testing.T) {
	for name, end := range map[string]func(c *connection) error{
		"rejected, then closed": func(c *connection) error { c.reject(errors.New("no")); return c.close() },
		"closed, then rejected": func(c *connection) error { err := c.close(); c.reject(errors.New("no")); return err },
	} {
		store, c, gates := guarded(t, at(redistest.Single(t), true))
		assert.NoError(t, end(c))
		assert.True(t, gates[store.Name()].closed, "%s: the gate is left open", name)
	}
}

func TestAForeignValueAtTheNodesKeyDoesNotSpeakAgainstTheServer(t *testing.T) {
	server := redistest.Single(t)
	client := server.Client(t)
	store, _, gates := guarded(t, at(server, true))
	if _, err := store.Beat(t.Context(), "default", "a", time.Minute); err != nil {
		t.Fatal(err)
	}
	keys := client.Keys(t.Context(), "*").Val()
	require.Len(t, keys, 1, "a heartbeat has left the keys %q, want one", keys)
	must(t, client, "set", keys[0], "another program's")
	if _, err := store.Beat(t.Context(), "default", "a", time.Minute); err == nil {
		t.Error("a heartbeat over a foreign value is no error")
	}
	if gate := gates[store.Name()]; gate.failed != 0 {
		t.Errorf("%d of %d calls count against the server, which is well", gate.failed, gate.in)
	}
}
