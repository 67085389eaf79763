package redis

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// turnstile is a gate that counts its calls.
type turnstile struct {
	mu              sync.Mutex
	shut            bool
	in, out, failed int
	abandoned       int // of out
	closed          bool
}

func (g *turnstile) Enter() (time.Duration, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.shut {
		return 7 * time.Second, false
	}
	g.in++
	return 0, true
}

func (g *turnstile) Leave(_ time.Duration, failed bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.out++
	if failed {
		g.failed++
	}
}

func (g *turnstile) Abandon(time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.out++
	g.abandoned++
}

func (g *turnstile) Close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
}

// guarded is a store whose servers have turnstiles, by their names.
func guarded(t *testing.T, block schema.Redis) (*Store, *connection, map[string]*turnstile) {
	t.Helper()
	var mu sync.Mutex
	gates := map[string]*turnstile{}
	c, release, err := NewRegistry(quiet, func(_, server string, _ time.Duration) Gate {
		mu.Lock()
		defer mu.Unlock()
		gates[server] = &turnstile{}
		return gates[server]
	}).acquire(block)
	require.NoError(t, err)
	t.Cleanup(release)
	return c.store, c, gates
}

func TestNothingIsSentThroughAShutGate(t *testing.T) {
	server := redistest.Single(t)
	store, c, gates := guarded(t, at(server, true))
	bounds, statuses := []policy.Bound{hundred(t), everybody(hundred(t))}, make([]decision.Status, 2)
	if err := store.Take(t.Context(), bounds, statuses); err != nil || statuses[0].Source != decision.Redis {
		t.Fatalf("%v, %+v", err, statuses)
	}
	gate := gates[store.Name()]
	gate.shut = true
	must(t, server.Client(t), "config", "resetstat")
	require.NoError(t, store.Take(t.Context(), bounds, statuses))
	for i, s := range statuses {
		if s != (decision.Status{Failure: decision.Unavailable, Wait: 7_000_000}) {
			t.Errorf("bound %d says %+v, want that Redis is unavailable for 7 s", i, s)
		}
	}
	err := c.Run(t.Context(), c.script, newCall([]string{"k"}))
	assert.True(t, errors.Is(err, errGate) && wantKind(err, NotSent) == nil, "error is %v", err)
	store.Probe(t.Context())
	if calls := calls(t, server.Client(t)); calls["evalsha"]+calls["ping"] != 0 || store.Stats().Failed != 0 {
		t.Errorf("%v were sent, %d failures counted, want none", calls, store.Stats().Failed)
	}
	gate.shut = false
	store.Probe(t.Context())
	if gate.in != 2 || gate.out != 2 || gate.failed != 0 {
		t.Errorf("%d went in, %d came out, %d failed, want 2, 2, 0", gate.in, gate.out, gate.failed)
	}
}

func TestAGateIsToldWhatSpeaksAgainstItsServer(t *testing.T) {
	server := redistest.Single(t)
	store, _, gates := guarded(t, at(server, false))
	take := func(want decision.Failure) {
		t.Helper()
		statuses := make([]decision.Status, 1)
		if err := store.Take(t.Context(), []policy.Bound{hundred(t)}, statuses); err != nil || statuses[0].Failure != want {
			t.Errorf("%v, %+v, want the failure %q", err, statuses[0], want)
		}
	}
	take(decision.NoFailure)
	gate := gates[store.Name()]
	must(t, server.Client(t), "config", "set", "maxmemory", "1")
	take(decision.Unavailable)
	assert.Equal(t, 1, gate.failed, "failures after a full Redis rejected a script")
	server.Kill()
	take(decision.Unavailable)
	if gate.failed != 2 || gate.in != gate.out {
		t.Errorf("%d failures after the server died, want 2; %d went in, %d came out", gate.failed, gate.in, gate.out)
	}
}

func TestEachMasterHasAGateUntilTheEnd(t *testing.T) {
	t.Parallel()
	nodes := redistest.Cluster(t, 3, 0)
	store, c, gates := guarded(t, among(nodes, true))
	bounds, statuses := []policy.Bound{hundred(t)}, make([]decision.Status, 1)
	for _, tenant := range []string{"a", "b", "c", "d", "e", "f", "g", "h", "i", "j"} {
		bounds[0].Key.GroupID = tenant
		if err := store.Take(t.Context(), bounds, statuses); err != nil || statuses[0].Source != decision.Redis {
			t.Fatalf("%v, %+v", err, statuses)
		}
	}
	store.Probe(t.Context())
	passed := 0
	for server, gate := range gates {
		if server != "any" {
			passed += gate.in
		}
	}
	if len(gates) != 4 || !gates["any"].closed || passed != 10+3 {
		t.Errorf("%d gates, %d calls: want three masters' beside that of the search, and ten takes and three probes", len(gates), passed)
	}
	assert.NoError(t, c.close())
	for server, gate := range gates {
		assert.True(t, gate.closed, "the gate of %s is not closed at the end", server)
	}
}

func TestAServerIsNotGivenCreditForACallerWhoHadNoMoreTime(t *testing.T) {
	for _, pipelined := range []bool{false, true} {
		server := redistest.Single(t)
		store, _, gates := guarded(t, at(server, pipelined))
		bounds, statuses := []policy.Bound{hundred(t)}, make([]decision.Status, 1)
		if err := store.Take(t.Context(), bounds, statuses); err != nil || statuses[0].Source != decision.Redis {
			t.Fatalf("%v, %+v: want an answer of Redis", err, statuses[0])
		}
		server.Hang(t)
		gate := gates[store.Name()]
		await.That(t, "a call is at the server when its caller has no more time", func() bool {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second/2)
			defer cancel()
			if err := store.Take(ctx, bounds, statuses); err != nil || statuses[0].Failure == decision.NoFailure {
				t.Errorf("%v, %+v: want no answer", err, statuses[0])
			}
			return gate.out > 1
		})
		server.Resume(t)
		if gate.out != 2 || gate.abandoned != 1 {
			t.Errorf("pipelined %v: %d came out, %d abandoned, want 2 and 1", pipelined, gate.out, gate.abandoned)
		}
	}
}

// panicking is a hook of go-redis that panics before each command.
type panicking struct{ redis.Hook }

func (panicking) DialHook(next redis.DialHook) redis.DialHook { return next }

func (panicking) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(context.Context, redis.Cmder) error { panic("a fault of this program") }
}

func (panicking) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func TestACallThatPanicsLeavesTheGateBehindIt(t *testing.T) {
	gate := new(turnstile)
	s := newServer(func() *redis.Client { return redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}) }, gate, false)
	defer s.client.Close()
	s.client.AddHook(panicking{})
	for what, call := range map[string]func(){
		"a script": func() { _ = s.run(t.Context(), beatScript, newCall([]string{"k"}), false) },
		"a probe":  func() { s.probe(t.Context(), "k") },
	} {
		func() {
			defer func() {
				assert.NotNil(t, recover(), "%s has not panicked", what)
			}()
			call()
		}()
	}
	if gate.in != 2 || gate.abandoned != 2 || gate.out != 2 {
		t.Errorf("%d went in, %d came out, %d abandoned: want 2 of each", gate.in, gate.out, gate.abandoned)
	}
}
