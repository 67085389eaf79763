package spec

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/logtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/kong/gateway"
)

// upgrade is a node whose plugin server is replaced under load.
type upgrade struct {
	t            *testing.T
	deck, prefix string
	node         atomic.Pointer[node] // gets the load
	server       *exec.Cmd            // nil: the node runs its server
	sockets      []*os.File           // of a socket unit; none: the server opens its own
}

// ways has the ways to replace the server. most is how many requests may fail each time, or all that are in flight if
// those are more, as on a busy machine; -1: any number.
var ways = []struct {
	name string
	most int64
	runs func(*upgrade) // starts the server; nil: the node does
	play func(*upgrade)
}{
	{"SIGHUP, `systemctl reload`", 0, nil, func(u *upgrade) {
		n := u.node.Load()
		before := workerOf(u.t, n.runningPID())
		require.NoError(u.t, syscall.Kill(n.runningPID(), syscall.SIGHUP))
		await.That(u.t, "the end of the worker before", func() bool { return syscall.Kill(before, 0) != nil })
		assert.Zero(u.t, n.Counters().Replays.Load(), "events that Kong has replayed")
	}},
	{"`kong reload`", 0, (*upgrade).run, func(u *upgrade) {
		server, before := u.server, u.node.Load()
		u.run()
		u.node.Store(u.kong())
		require.NoError(u.t, before.Close())
		u.terminate(server)
	}},
	{"a crash or `kill -9` of the worker", 5, nil, func(u *upgrade) { u.node.Load().crash() }},
	{"`systemctl restart` with the socket unit", -1, (*upgrade).activate, func(u *upgrade) {
		u.terminate(u.server)
		u.run()
	}},
	{"SIGTERM, and Kong starts it again", -1, nil, func(u *upgrade) { u.signal(syscall.SIGTERM) }},
	{"`kill -9` of the supervisor", -1, nil, func(u *upgrade) { u.signal(syscall.SIGKILL) }},
}

// kong starts a node for the server.
func (u *upgrade) kong() *node {
	return start(u.t, u.deck, settling, func(o *gateway.Options) {
		if u.server != nil {
			o.Prefix, o.Servers[0] = u.prefix, gateway.PluginServer{
				Query: []string{plugin(), "-dump"}, Socket: "tenant-rate-limiting.socket",
			}
		}
	})
}

// activate opens the sockets as systemd does, and runs a server behind them.
func (u *upgrade) activate() {
	for _, name := range []string{"tenant-rate-limiting", "tenant-rate-settling"} {
		l, err := net.Listen("unix", filepath.Join(u.prefix, name+".socket"))
		require.NoError(u.t, err)
		u.t.Cleanup(func() { l.Close() })
		file, err := l.(*net.UnixListener).File()
		require.NoError(u.t, err)
		u.sockets = append(u.sockets, file)
	}
	u.run()
}

// run runs a server, and waits until it serves.
func (u *upgrade) run() {
	script := `exec "$0" -metrics-listen off -kong-prefix "$1"`
	if u.sockets != nil {
		script = "export LISTEN_PID=$$ LISTEN_FDS=2; " + script
	}
	var log logtest.Text
	u.server = exec.Command("/bin/sh", "-c", script, plugin(), u.prefix)
	u.server.ExtraFiles, u.server.Stderr = u.sockets, &log
	require.NoError(u.t, u.server.Start())
	server := u.server
	u.t.Cleanup(func() { _ = server.Process.Kill() }) // it may have ended
	log.Await(u.t, "serving Kong")
}

// signal ends the server, and waits until Kong has started another.
func (u *upgrade) signal(s syscall.Signal) {
	n := u.node.Load()
	before := n.runningPID()
	worker := workerOf(u.t, before)
	require.NoError(u.t, syscall.Kill(before, s))
	await.That(u.t, "the end of the worker", func() bool { return syscall.Kill(worker, 0) != nil })
	await.That(u.t, "another server", func() bool { pid := n.PluginPID(); return pid != before && pid != 0 })
}

// send sends a request, and again if its Kong has ended meanwhile.
func (u *upgrade) send() (answer, error) {
	n := u.node.Load()
	a, err := n.send(http.MethodGet, "/answer?header=X-Tokens-Used:3", "apikey", "beth")
	if err != nil && n != u.node.Load() {
		return u.send()
	}
	return a, err
}

func (u *upgrade) terminate(server *exec.Cmd) {
	require.NoError(u.t, server.Process.Signal(syscall.SIGTERM))
	require.NoError(u.t, server.Wait())
}

func TestChaosAReplacedServerFailsFewRequestsAndLosesNoLogEvent(t *testing.T) {
	t.Parallel()
	rows := make([]string, len(ways))
	t.Cleanup(func() {
		publish(t, "| the plugin server is replaced by | failed requests | lost log events | p99 before | p99 | worst |\n"+
			"|---|--:|--:|--:|--:|--:|\n"+strings.Join(rows, ""))
	})
	for i, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			u := &upgrade{t: t, prefix: shortDir(t), deck: settlingDeck(
				fmt.Sprintf("strategy: redis, redis: {socket: %s, %s}", redistest.Single(t).Socket,
					strings.ReplaceAll(strings.ReplaceAll(patience, `"`, ""), ":", ": ")),
				`{name: budget, scope: tenant, limit: 1000000, window_size: 31536000, algorithm: fixed_window,
				settle: {sources: [{from: header.X-Tokens-Used}], reserve: 100}}`)}
			if way.runs != nil {
				way.runs(u)
			}
			u.node.Store(u.kong())
			l := startLoad(20, 30*time.Millisecond, u.send)
			awaitCount(t, "starts of instances", l.passed.Load, 200)
			l.takeLatencies()
			awaitCount(t, "quiet traffic", l.passed.Load, 1000)
			quiet := l.takeLatencies()
			within := 0
			for plays := 0; within < 3 && plays < 10; plays++ {
				before, inFlight := l.failed.Load(), l.inFlight.Load()
				way.play(u)
				awaitCount(t, "traffic for more than a second", l.passed.Load, 800) // Kong starts a server once a second
				if failed := l.failed.Load() - before; way.most < 1 || failed <= max(way.most, inFlight) {
					within++
				}
			}
			l.end()
			during, failed := l.takeLatencies(), l.failed.Load()
			if within < 3 {
				t.Errorf("%d of 10 replacements failed %d requests or those in flight at most, want three", within, way.most)
			}
			n := u.node.Load()
			lost := n.log.Count("plugin failed in the log phase")
			rows[i] = fmt.Sprintf("| %s | %d of %d | %d | %v | %v | %v |\n", way.name, failed, len(during), lost,
				at(quiet, 0.99), at(during, 0.99), at(during, 1))
			if way.most == 0 {
				assert.Zero(t, failed, "failed requests")
				assert.Zero(t, lost, "lost log events")
				b := budget{node: n, sent: n.Counters().LogEvents.Load()}
				await.That(t, "every request is charged what it used", func() bool {
					return b.left(100) == 1_000_000-3*int(l.passed.Load())
				})
			}
		})
	}
}

// at returns a quantile of latencies, in milliseconds.
func at(sorted []time.Duration, quantile float64) time.Duration {
	return sorted[int(quantile*float64(len(sorted)-1))].Round(100 * time.Microsecond)
}
