package spec

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/freeport"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/kong/gateway"
)

// fleet is a set of plugin processes that share the buckets in one Redis.
type fleet struct {
	t     testing.TB
	redis string    // the redis block of their configs, as JSON
	begun time.Time // the zero of all samples; a whole minute, at which windows begin
}

// onSocket returns a fleet without members on a Redis.
func onSocket(t testing.TB, server *redistest.Server) *fleet {
	return onRedis(t, fmt.Sprintf(`"socket":%q,%s`, server.Socket, patience))
}

// onRedis returns a fleet on a Redis, with settings of the redis block of a config.
func onRedis(t testing.TB, settings string) *fleet {
	return &fleet{t: t, redis: "{" + settings + "}", begun: time.Now().Truncate(time.Minute)}
}

// since returns the time on the clock of the samples.
func (f *fleet) since() time.Duration { return time.Since(f.begun) }

// member is one process of a fleet.
type member struct {
	*process
	fleet           *fleet
	socket, metrics string

	plugins, instances int // started so far
}

// join starts one more member. args are more flags of the plugin server.
func (f *fleet) join(args ...string) *member {
	f.t.Helper()
	prefix, metrics := shortDir(f.t), freeport.Address(f.t)
	p := startPlugin(f.t, prefix, append([]string{"-metrics-listen", metrics}, args...)...)
	return &member{process: p, fleet: f, socket: filepath.Join(prefix, "tenant-rate-limiting.socket"), metrics: metrics}
}

// loads has an element for each spec that loads the machine.
var loads = make(chan struct{}, 2)

// awaitTurn waits until at most one other spec loads the machine. The spec then counts as loading it until it ends.
// Specs wait in parallel until their nodes may lease.
func awaitTurn(t testing.TB) {
	loads <- struct{}{}
	t.Cleanup(func() { <-loads })
}

// joinAll starts n members.
func (f *fleet) joinAll(n int, args ...string) []*member {
	f.t.Helper()
	var members []*member
	for range n {
		members = append(members, f.join(args...))
	}
	return members
}

// kill ends a member as a crash would.
func (m *member) kill() {
	m.t.Helper()
	require.NoError(m.t, m.cmd.Process.Signal(syscall.SIGSTOP)) // it starts no other worker, and none notices its end
	require.NoError(m.t, syscall.Kill(workerOf(m.t, m.cmd.Process.Pid), syscall.SIGKILL))
	require.NoError(m.t, m.cmd.Process.Kill())
	_ = m.cmd.Wait() // the error is the kill
}

// numbers returns a member's metrics.
func (m *member) numbers() numbers { return (&chaosNode{metrics: m.metrics}).scrape() }

// drawn returns the number of limits that a member has answered from leases.
func (m *member) drawn() int {
	return int(m.numbers().sum("rate_limiter_answered_limits_total", `by="lease"`))
}

// leased returns the number of tokens of a member's leases with an outcome: granted, spent, returned or expired.
func (m *member) leased(outcome string) int {
	return int(m.numbers().sum("rate_limiter_leased_tokens_total", fmt.Sprintf("outcome=%q", outcome)))
}

// configOf returns a plugin config with buckets in the fleet's Redis. others are more settings, each followed by a
// comma.
func (f *fleet) configOf(others, limits string) string {
	return fmt.Sprintf(`{"strategy":"redis","redis":%s,"fail_mode":"closed",%s"tiers":[{"name":"a","limits":[%s]}]}`,
		f.redis, others, limits)
}

// open starts an instance of one more plugin config in a member.
func (m *member) open(others, limits string) int32 {
	m.t.Helper()
	m.plugins++
	return m.change(m.plugins, others, limits)
}

// change starts an instance of another version of the member's n-th plugin config, as Kong does after a change.
func (m *member) change(n int, others, limits string) int32 {
	m.t.Helper()
	m.instances++
	config := m.fleet.configOf(others, limits)
	id := startInstance(m.t, m.socket, fmt.Sprintf(`{"__seq__":%d,"__plugin_id":"p%d",%s`, m.instances, n, config[1:]))
	if m.numbers().sum("rate_limiter_config_faults_total") > 0 {
		m.t.Fatalf("the config has faults, so that nothing is limited: %s", config)
	}
	return id
}

// startInstance starts an instance of a config.
func startInstance(t testing.TB, socket, config string) int32 {
	t.Helper()
	if !json.Valid([]byte(config)) {
		t.Fatalf("not JSON: %s", config)
	}
	c, err := gateway.Dial(socket)
	require.NoError(t, err)
	defer c.Close()
	id, err := c.StartInstance("tenant-rate-limiting", []byte(config))
	require.NoError(t, err)
	return id
}

// by returns a request of a tenant and one user.
func by(tenant string) gateway.Request {
	return gateway.Request{
		Consumer: &gateway.Consumer{ID: "c", Username: tenant}, CredentialID: "k",
		RemoteAddr: "127.0.0.1:1",
	}
}

// awaitLeases sends each member requests until it answers some from a lease: a node may not lease until all others have
// noticed it. Over one connection two requests may be too far apart for a lease, on a busy machine.
func (f *fleet) awaitLeases(members ...*member) {
	f.t.Helper()
	var group sync.WaitGroup
	for _, m := range members {
		id, before := m.open("", `{"name":"plenty","scope":"tenant","limit":1000000,"window_size":1}`), m.drawn()
		for range 4 {
			group.Go(func() {
				if err := m.sendUntilLeased(id, before); err != nil {
					f.t.Error(err)
				}
			})
		}
	}
	if group.Wait(); f.t.Failed() {
		f.t.FailNow()
	}
}

// sendUntilLeased sends requests over a connection until more than before were answered from a lease. On a busy machine
// Redis may miss its timeout, so that one is not decided.
func (m *member) sendUntilLeased(id int32, before int) error {
	var c *gateway.Conn
	defer func() {
		if c != nil {
			_ = c.Close()
		}
	}()
	pace := time.NewTicker(10 * time.Millisecond)
	defer pace.Stop()
	start := time.Now()
	for n := 1; n%10 != 0 || m.drawn() == before; n++ {
		if time.Since(start) > longest {
			return fmt.Errorf("a node has leased nothing within %v:\n%v", longest, m.numbers())
		}
		<-pace.C
		if c == nil {
			var err error
			if c, err = gateway.Dial(m.socket); err != nil {
				return err
			}
		}
		outcome, err := c.HandleEvent(id, "access", by("plenty"))
		if err != nil {
			return err
		}
		if outcome.Exit != nil {
			c = nil // an exit closes the connection
		}
	}
	return nil
}

// out returns the number of a member's tokens on lease.
func (m *member) out() int { return int(m.numbers().sum("rate_limiter_lease_tokens_out")) }

// scripts returns the number of EVALSHA that a Redis has run: for requests, leases, releases and heartbeats.
func scripts(t testing.TB, client *redis.Client) int {
	t.Helper()
	stats, err := client.InfoMap(context.Background(), "commandstats").Result()
	require.NoError(t, err)
	n := 0 // without calls
	if text := stats["Commandstats"]["cmdstat_evalsha"]; text != "" {
		if _, err := fmt.Sscanf(text, "calls=%d", &n); err != nil {
			t.Fatalf("%q: %v", text, err)
		}
	}
	return n
}

// ask sends one request of one tenant.
func (m *member) ask(t testing.TB, id int32, request gateway.Request) gateway.Outcome {
	t.Helper()
	c, err := gateway.Dial(m.socket)
	require.NoError(t, err)
	defer c.Close()
	outcome, err := c.HandleEvent(id, "access", request)
	require.NoError(t, err)
	return outcome
}
