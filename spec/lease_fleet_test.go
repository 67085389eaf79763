package spec

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/freeport"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/kong/gateway"
)

// fleet is plugin processes that share the buckets in one Redis.
type fleet struct {
	t     testing.TB
	redis string    // the redis block of their configs, as JSON
	begun time.Time // the zero of all samples; a whole minute, so that the windows of limits begin in whole numbers
}

// onSocket is a fleet, still without members, on a Redis of its own.
func onSocket(t testing.TB, server *redistest.Server) *fleet {
	return onRedis(t, fmt.Sprintf(`"socket":%q`, server.Socket))
}

// onRedis is a fleet on the Redis at an address, written as in a config. It waits for Redis for longer than usual, so
// that on a busy machine it is not taken for dead.
func onRedis(t testing.TB, address string) *fleet {
	return &fleet{t: t, redis: fmt.Sprintf(`{%s,"send_timeout":%[2]d,"read_timeout":%[2]d}`, address, chaosTimeout.Milliseconds()), begun: time.Now().Truncate(time.Minute)}
}

// since is the time on the clock of the samples.
func (f *fleet) since() time.Duration { return time.Since(f.begun) }

// member is one process of a fleet.
type member struct {
	*process
	fleet           *fleet
	socket, metrics string

	plugins, instances int // so many were started
}

// join starts one more member. args are more flags of the plugin server.
func (f *fleet) join(args ...string) *member {
	f.t.Helper()
	prefix, metrics := shortDir(f.t), freeport.Address(f.t)
	p := startPlugin(f.t, prefix, append([]string{"-metrics-listen", metrics}, args...)...)
	return &member{process: p, fleet: f, socket: filepath.Join(prefix, "tenant-rate-limiting.socket"), metrics: metrics}
}

// machine is held by the spec that presses on it.
var machine sync.Mutex

// alone waits until no other spec presses on the machine, and keeps it until the test ends. Nodes that have joined wait
// for seconds until they may lease, which specs can do side by side; their load would only make one another's slow.
func alone(t testing.TB) {
	machine.Lock()
	t.Cleanup(machine.Unlock)
}

// joinAll starts so many members.
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
	if err := m.cmd.Process.Kill(); err != nil {
		m.t.Fatal(err)
	}
	_ = m.cmd.Wait() // it says that the process was killed
}

// numbers are a member's metrics now.
func (m *member) numbers() numbers { return (&chaosNode{metrics: m.metrics}).scrape() }

// drawn is how many limits of requests a member has answered from leases.
func (m *member) drawn() int {
	return int(m.numbers().sum("rate_limiter_answered_limits_total", `by="lease"`))
}

// leased is how many tokens of a member's leases came to an outcome: granted, spent, returned or expired.
func (m *member) leased(outcome string) int {
	return int(m.numbers().sum("rate_limiter_leased_tokens_total", fmt.Sprintf("outcome=%q", outcome)))
}

// configOf is a plugin config whose buckets are in the fleet's Redis; others are more settings of it, each with a comma
// behind.
func (f *fleet) configOf(others, limits string) string {
	return fmt.Sprintf(`{"strategy":"redis","redis":%s,"fail_mode":"closed",%s"tiers":[{"name":"a","limits":[%s]}]}`, f.redis, others, limits)
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

// by is a request of a tenant, and of one user.
func by(tenant string) gateway.Request {
	return gateway.Request{Consumer: &gateway.Consumer{ID: "c", Username: tenant}, CredentialID: "k", RemoteAddr: "127.0.0.1:1"}
}

// awaitLeases sends each member a few requests until it answers some from a lease: a node that has joined may not lease
// until all others are sure to know of it.
func (f *fleet) awaitLeases(members ...*member) {
	f.t.Helper()
	var group sync.WaitGroup
	for _, m := range members {
		id := m.open("", `{"name":"plenty","scope":"tenant","limit":1000000,"window_size":1}`)
		group.Go(func() {
			if err := m.sendUntilLeased(id); err != nil {
				f.t.Error(err)
			}
		})
	}
	if group.Wait(); f.t.Failed() {
		f.t.FailNow()
	}
}

func (m *member) sendUntilLeased(id int32) error {
	c, err := gateway.Dial(m.socket)
	if err != nil {
		return err
	}
	defer c.Close()
	pace := time.NewTicker(10 * time.Millisecond)
	defer pace.Stop()
	before, begun := m.drawn(), time.Now()
	for n := 1; n%10 != 0 || m.drawn() == before; n++ {
		if time.Since(begun) > 30*time.Second {
			return fmt.Errorf("a node has leased nothing within 30 s:\n%v", m.numbers())
		}
		<-pace.C
		if _, err := c.HandleEvent(id, "access", by("plenty")); err != nil {
			return err
		}
	}
	return nil
}

// awaitSpent waits until a member has spent so many tokens of leases, and has some out.
func (m *member) awaitSpent(t *testing.T, tokens int) {
	t.Helper()
	before := m.leased("spent")
	await(t, fmt.Sprintf("%d tokens spent from leases", tokens), func() bool { return m.leased("spent") >= before+tokens && m.out() > 0 })
}

// out is how many tokens a member has out on lease.
func (m *member) out() int { return int(m.numbers().sum("rate_limiter_lease_tokens_out")) }

// used is what the operator's program reads of the one bucket of a tenant in the shared store. What is out on lease
// counts as used there.
func (f *fleet) used(limits, tenant string) int {
	f.t.Helper()
	dir := shortDir(f.t)
	deck := filepath.Join(dir, "kong.yml")
	text := fmt.Sprintf("_format_version: \"3.0\"\nplugins:\n- {name: tenant-rate-limiting, config: %s}\n", f.configOf("", limits))
	if err := os.WriteFile(deck, []byte(text), 0o600); err != nil {
		f.t.Fatal(err)
	}
	out, err := exec.Command(filepath.Join(binaries, "ratelimit"), "buckets", "show", "--config", deck, "--config-only", "--tenant", tenant, "-o", "json").Output()
	if err != nil {
		f.t.Fatalf("ratelimit buckets show: %v\n%s", err, out)
	}
	var buckets []struct{ Used int }
	if err := json.Unmarshal(out, &buckets); err != nil || len(buckets) != 1 {
		f.t.Fatalf("ratelimit buckets show: %v; want one bucket\n%s", err, out)
	}
	return buckets[0].Used
}

// scripts is how many scripts a Redis has run by EVALSHA: for requests, leases, what is given back and heartbeats.
func scripts(t testing.TB, client *redis.Client) int {
	t.Helper()
	stats, err := client.InfoMap(context.Background(), "commandstats").Result()
	if err != nil {
		t.Fatal(err)
	}
	n := 0 // where there were none
	if text := stats["Commandstats"]["cmdstat_evalsha"]; text != "" {
		if _, err := fmt.Sscanf(text, "calls=%d", &n); err != nil {
			t.Fatalf("%q: %v", text, err)
		}
	}
	return n
}
