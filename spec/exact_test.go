package spec

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/soak"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/kong/gateway"
)

// load is the load of an exactness spec: plugin processes, connections to each, and the duration.
type load struct {
	processes, connections int
	lasts                  time.Duration
	config                 string // other settings
}

// admission is one admitted request: it was decided at some instant from Sent to Answered.
type admission struct {
	Sent, Answered time.Duration
	Tokens         float64 // that it spent
	Above          float64 // tokens that an interval that ends with it may have above the limit
}

// press sends events of one tenant as fast as it can, until the load has lasted and some were denied. The limit has a
// bucket of its own.
func (l load) press(t *testing.T, algorithm string) []sample {
	t.Helper()
	var all []sample
	var denied atomic.Bool
	var mu sync.Mutex
	var group sync.WaitGroup
	start := time.Now().Truncate(time.Second)
	for range l.processes {
		prefix, err := os.MkdirTemp("", "k")
		require.NoError(t, err)
		t.Cleanup(func() { os.RemoveAll(prefix) })
		startPlugin(t, prefix)
		socket := filepath.Join(prefix, "tenant-rate-limiting.socket")
		id := startInstance(t, socket, fmt.Sprintf(`{"__seq__":1,"__plugin_id":"p","fail_mode":"closed",%s"namespace":%q,
			"tiers":[{"name":"a","limits":[{"name":"l","scope":"tenant","limit":%d,"window_size":1,"algorithm":%[2]q}]}]}`,
			l.config, algorithm, quantity))
		begun := time.Now()
		goesOn := func() bool {
			lasted := time.Since(begun)
			return lasted < l.lasts || !denied.Load() && lasted < longest
		}
		for range l.connections {
			group.Go(func() {
				samples, err := drive(socket, id, start, goesOn, &denied)
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				all = append(all, samples...)
			})
		}
	}
	group.Wait()
	return all
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

// drive runs events on one connection after another. A denial ends a connection, as in Kong.
func drive(socket string, id int32, start time.Time, goesOn func() bool, denied *atomic.Bool) ([]sample, error) {
	var all []sample
	request := gateway.Request{Consumer: &gateway.Consumer{ID: "c", Username: "acme"}, RemoteAddr: "127.0.0.1:1"}
	for goesOn() {
		c, err := gateway.Dial(socket)
		if err != nil {
			return all, err
		}
		for goesOn() {
			one := sample{Sent: time.Since(start), Status: http.StatusOK}
			outcome, err := c.HandleEvent(id, "access", request)
			if err != nil {
				return all, err
			}
			if one.Answered = time.Since(start); outcome.Exit == nil {
				all = append(all, one)
				continue
			}
			switch one.Status = outcome.Exit.Status; one.Status {
			case http.StatusTooManyRequests:
				denied.Store(true)
			case http.StatusServiceUnavailable: // not decided in time, and not admitted
			default:
				return all, fmt.Errorf("answered %d: %s", one.Status, outcome.Exit.Body)
			}
			all = append(all, one)
			break
		}
		if err := c.Close(); err != nil && !closed(err) {
			return all, err
		}
	}
	return all, nil
}

const quantity = 300 // per second, in every exactness spec: a third of the load, even on a busy machine

// exact loads one bucket with every algorithm, and compares the admissions with the bound. The
// instants are the client's, so an admission counts in an interval only if all of it lies there.
func exact(t *testing.T, l load) {
	for _, algorithm := range []string{"token_bucket", "leaky_bucket", "fixed_window", "sliding_window", "sliding_log"} {
		t.Run(algorithm, func(t *testing.T) {
			t.Parallel()
			samples := l.press(t, algorithm)
			all := admitted(samples)
			switch algorithm {
			case "token_bucket":
				checkBucket(t, all, quantity)
			case "leaky_bucket":
				checkBucket(t, all, 1)
			case "fixed_window", "sliding_window":
				checkWindows(t, all)
			case "sliding_log":
				checkLog(t, all)
			}
			// Most of the limit must be used, as far as the load needs it: on a busy machine that is less. A bucket without
			// burst admits one request at a time, and on a busy machine requests come together.
			share := 0.4
			if algorithm == "leaky_bucket" {
				share = 0.1
			}
			ideal := bound{algorithm: "token_bucket", limit: quantity, window: time.Second, burst: 1}.ideal(samples)
			t.Logf("%d of %d requests were admitted; a bucket without burst admits up to %d", len(all), len(samples), ideal)
			if float64(len(all)) < share*float64(ideal) {
				t.Errorf("%d were admitted, want %g of %d: the limiter is too slow", len(all), share, ideal)
			}
			if counted(samples, http.StatusTooManyRequests) == 0 {
				t.Error("none was denied: the load is too slow")
			}
		})
	}
}

// checkBucket checks every interval between two admissions: at most burst + rate × time.
func checkBucket(t *testing.T, all []admission, burst float64) {
	t.Helper()
	// An interval begins when its first request was sent.
	bySent := slices.Clone(all)
	slices.SortFunc(bySent, func(a, b admission) int { return cmp.Compare(a.Sent, b.Sent) })
	for i := 0; i < len(bySent); i += 1 + len(bySent)/200 { // 200 beginnings, every end of each
		from, count := bySent[i].Sent, 0.0
		for _, a := range all {
			if a.Sent < from {
				continue
			}
			count++
			if most := burst + quantity*(a.Answered-from).Seconds(); count > most {
				t.Fatalf("%v admitted from %v to %v, at most %v allowed", count, from, a.Answered, most)
			}
		}
	}
}

// checkWindows checks every window aligned to the second.
func checkWindows(t *testing.T, all []admission) {
	t.Helper()
	count := map[time.Duration]int{}
	for _, a := range all {
		if window := a.Sent.Truncate(time.Second); window == a.Answered.Truncate(time.Second) {
			count[window]++
		}
	}
	for window, n := range count {
		if n > quantity {
			t.Errorf("%d admitted in the window at %v, at most %d allowed", n, window, quantity)
		}
	}
}

// checkLog checks every interval of one second that begins when an admission was sent.
func checkLog(t *testing.T, all []admission) {
	t.Helper()
	for _, first := range all {
		from, n := first.Sent, 0
		begin, _ := slices.BinarySearchFunc(all, from,
			func(a admission, at time.Duration) int { return cmp.Compare(a.Answered, at) })
		for _, a := range all[begin:] {
			if a.Answered >= from+time.Second {
				break
			}
			if a.Sent >= from {
				n++
			}
		}
		if n > quantity {
			t.Fatalf("%d admitted in the second from %v, at most %d allowed", n, from, quantity)
		}
	}
}

func TestSoakOneProcessUnderThreefoldLoadNeverExceedsAnyAlgorithmsBound(t *testing.T) {
	t.Parallel()
	awaitTurn(t)
	exact(t, load{processes: 1, connections: 16, lasts: soak.For(t, 1500*time.Millisecond)})
}
