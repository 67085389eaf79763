package spec

import (
	"bufio"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/soak"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/kong/gateway"
)

// orphan is a plugin server whose parent can be killed, like Kong's worker 0 in a crash.
type orphan struct {
	worker *exec.Cmd
	lines  chan string // of its log; closed when the process has ended
}

// startOrphan starts a plugin server with a parent of its own.
func startOrphan(t *testing.T, prefix string) *orphan {
	t.Helper()
	o := &orphan{
		worker: exec.Command("/bin/sh", "-c", `env -i "$0" -metrics-listen off -kong-prefix "$1" & wait`, plugin(), prefix),
		lines:  make(chan string, 1000),
	}
	stderr, err := o.worker.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, o.worker.Start())
	go func() {
		defer close(o.lines)
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			o.lines <- lines.Text()
		}
	}()
	o.await(t, "serving Kong")
	return o
}

// await waits for a line of the log, or with "" for the end of the process.
func (o *orphan) await(t *testing.T, part string) {
	t.Helper()
	deadline := time.After(60 * time.Second)
	for {
		select {
		case line, ok := <-o.lines:
			switch {
			case !ok && part == "":
				return
			case !ok:
				t.Fatalf("the process ended before it logged %q", part)
			case part != "" && strings.Contains(line, part):
				return
			}
		case <-deadline:
			t.Fatalf("never: %q in the log", part)
		}
	}
}

// crash kills the parent.
func (o *orphan) crash(t *testing.T) {
	t.Helper()
	require.NoError(t, o.worker.Process.Signal(syscall.SIGKILL))
	if _, err := o.worker.Process.Wait(); err != nil {
		t.Fatal(err)
	}
}

func TestAPluginWhoseWorkerWasKilledServesTheOtherWorkersAndEndsAfterThem(t *testing.T) {
	t.Parallel()
	prefix := shortDir(t)
	first := startOrphan(t, prefix)
	n := start(t, deck(plentiful), func(o *gateway.Options) {
		o.Servers = []gateway.PluginServer{{
			Info:   pluginInfo(t),
			Socket: filepath.Join(prefix, "tenant-rate-limiting.socket"),
		}}
	})
	n.want(times(4, 200), "/records", "apikey", "alice")
	first.crash(t)
	second := startPlugin(t, prefix) // as the worker that replaces the killed one does
	n.want(times(20, 200), "/records", "apikey", "alice")
	require.NoError(t, n.Close())
	first.await(t, "shutting down")
	first.await(t, "")
	second.terminate()
}

// load is requests of many clients.
type load struct {
	passed, failed, inFlight atomic.Int64

	clients   sync.WaitGroup
	done      chan struct{}
	mu        sync.Mutex
	latencies []time.Duration
}

// startLoad lets a number of clients send requests, each at a pace, in turn, until end.
func startLoad(clients int, pace time.Duration, send func() (answer, error)) *load {
	l := &load{done: make(chan struct{})}
	for i := range clients {
		l.clients.Go(func() {
			time.Sleep(pace * time.Duration(i) / time.Duration(clients))
			ticker := time.NewTicker(pace)
			defer ticker.Stop()
			for {
				select {
				case <-l.done:
					return
				case <-ticker.C:
				}
				sent := time.Now()
				l.inFlight.Add(1)
				a, err := send()
				l.inFlight.Add(-1)
				l.mu.Lock()
				l.latencies = append(l.latencies, time.Since(sent))
				l.mu.Unlock()
				if err == nil && a.Status == http.StatusOK {
					l.passed.Add(1)
				} else {
					l.failed.Add(1)
				}
			}
		})
	}
	return l
}

// takeLatencies returns the latencies since it was last called, in ascending order.
func (l *load) takeLatencies() []time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	sorted := l.latencies
	l.latencies = nil
	slices.Sort(sorted)
	return sorted
}

// end stops the clients and waits for their last answers.
func (l *load) end() {
	close(l.done)
	l.clients.Wait()
}

// awaitCount waits until count has grown by a number.
func awaitCount(t *testing.T, what string, count func() int64, by int64) {
	t.Helper()
	start := count()
	await.That(t, what, func() bool { return count() >= start+by })
}

// busyKong is an option of start: a busy Kong, which notices late that idle connections were closed.
func busyKong(o *gateway.Options) { o.NoticeAfter = 50 * time.Millisecond }

func TestSoakRestartsOfThePluginUnderLoadStallNoRoute(t *testing.T) {
	t.Parallel()
	awaitTurn(t)
	n := start(t, deck(plentiful), busyKong)
	// The plugin keeps a connection readable for 300 ms, in which Kong notices that it ends, unless Kong does not run.
	const runs = 100 * time.Millisecond
	for begun, stalls := time.Now(), int64(-1); stalls != 0; {
		before, latest := n.Counters().Stalls.Load(), lateness(t.Context())
		n.restartUnderLoad(t, soak.Count(4, 10))
		stalls = n.Counters().Stalls.Load() - before
		if late := latest(); stalls > 0 && (late < runs || time.Since(begun) > longest) {
			t.Fatalf("%d requests waited for an instance until they gave up, want 0; timers were late by %v", stalls, late)
		}
	}
}

// lateness measures how late the timers of this process are, on a busy machine. latest ends that, and returns the most.
func lateness(ctx context.Context) (latest func() time.Duration) {
	ctx, cancel := context.WithCancel(ctx)
	most := make(chan time.Duration, 1)
	go func() {
		late, pause := time.Duration(0), time.Millisecond
		for ctx.Err() == nil {
			began := time.Now()
			time.Sleep(pause)
			late = max(late, time.Since(began)-pause)
		}
		most <- late
	}()
	return func() time.Duration { cancel(); return <-most }
}

// restartUnderLoad ends the plugin a number of times while requests are sent, and returns after the last answer.
func (n *node) restartUnderLoad(t *testing.T, times int) {
	t.Helper()
	l := startLoad(16, 10*time.Millisecond, func() (answer, error) { return n.send("GET", "/records", "apikey", "alice") })
	defer l.end()
	for range times {
		awaitCount(t, "requests before the restart", l.passed.Load, 100)
		before := n.Counters().Spawns.Load()
		require.NoError(t, syscall.Kill(n.runningPID(), syscall.SIGTERM))
		await.That(t, "a new process", func() bool { return n.Counters().Spawns.Load() > before })
	}
	awaitCount(t, "requests after the restarts", l.passed.Load, 100)
}

func TestAPluginWithAHundredTiersAndNoRedisAnswersSoonAfterItsStart(t *testing.T) {
	config := hundredTiers(`"strategy":"redis","redis":{"host":"127.0.0.1","port":1}`) // no server listens there
	// A busy machine delays some starts. What the program waits for delays each.
	for begun, soon := time.Now(), 0; soon < 3; {
		took := firstAnswer(t, config, "")
		t.Logf("from the start of the process to the first answer: %v", took)
		if took <= time.Second {
			soon++
		}
		if time.Since(begun) > longest {
			t.Fatalf("%d starts were followed by an answer within a second, want 3", soon)
		}
	}
}

func TestTenThousandSavedPoliciesAreInForceAtTheFirstAnswer(t *testing.T) {
	saved := t.TempDir()
	file, err := os.Create(filepath.Join(saved, "policies.snapshot"))
	require.NoError(t, err)
	out := gzip.NewWriter(file)
	fmt.Fprintln(out, `{"Format":4,"Version":1,"Confirmed":"2026-01-01T00:00:00Z","Rows":10000}`)
	for i := range 10_000 {
		tenant, tokens := fmt.Sprint("tenant-", i), 1000+i
		if i == 9_999 {
			tenant = "acme"
		}
		fmt.Fprintf(out, `{"Policy":{"id":%d,"namespace":"default","tenant":%q,"name":"daily","scope":"tenant",`+
			`"limit":%d,"window_size":86400,"algorithm":"fixed_window"}}`+"\n", i+1, tenant, tokens)
	}
	require.NoError(t, errors.Join(out.Close(), file.Close()))
	// A busy machine delays most starts.
	for begun, took := time.Now(), time.Hour; took > 2*time.Second; {
		took = firstAnswer(t, `{"__seq__":1,"strategy":"local"}`, "10999",
			"-database", "postgres://127.0.0.1:1/none", "-snapshot-dir", saved)
		t.Logf("from the start of the process to the first answer: %v", took)
		require.Less(t, time.Since(begun), longest, "no answer came within two seconds of a start")
	}
}

// firstAnswer starts a plugin server with a config, and returns the time until it has answered a request of acme, whose
// limit is limit, or "" for any.
func firstAnswer(t *testing.T, config, limit string, args ...string) time.Duration {
	t.Helper()
	prefix := shortDir(t)
	begun := time.Now()
	p := startPlugin(t, prefix, append(args, "-metrics-listen", "off")...)
	socket := filepath.Join(prefix, "tenant-rate-limiting.socket")
	id := startInstance(t, socket, config)
	c, err := gateway.Dial(socket)
	require.NoError(t, err)
	outcome, err := c.HandleEvent(id, "access",
		gateway.Request{Consumer: &gateway.Consumer{ID: "c", Username: "acme"}, RemoteAddr: "127.0.0.1:1"})
	if err != nil || outcome.Exit != nil {
		t.Errorf("the first request: %+v, %v", outcome, err)
	}
	took := time.Since(begun)
	if limit != "" {
		assert.Equal(t, []string{limit}, map[string][]string(outcome.Header)["X-RateLimit-Limit"]) // as the plugin spells it
	}
	c.Close()
	p.terminate()
	return took
}

// hundredTiers is a large config as Kong sends it, with other settings beside.
func hundredTiers(others string) string {
	var tiers []string
	for i := range 100 {
		tiers = append(tiers,
			fmt.Sprintf(`{"name":"t%d",
				"limits":[{"name":"day","scope":"tenant","limit":%d,"window_size":86400,"algorithm":"fixed_window"},
			{"name":"burst","scope":"tenant","limit":50,"window_size":1},
				{"name":"write","scope":"user","endpoint":"POST /records/{id}","limit":10,"window_size":1}]}`, i, 1000+i))
	}
	return `{"__seq__":4711,"__plugin_id":"p",` + others + `,"tiers":[` + strings.Join(tiers, ",") + `]}`
}
