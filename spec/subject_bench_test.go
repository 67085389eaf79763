//go:build linux

package spec

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/logtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/kong/gateway"
)

// This file has the shared parts of the benchmarks over the socket: plugin servers that take turns under load, the
// clock of their CPU time, and the rows of the output.

// fourScopes returns a plugin config as Kong sends it for a route. Each request is counted per tenant, tenant and
// endpoint, user, and globally, and is admitted with all headers. It asks Kong one question. seq numbers the configs of
// one process; others are more fields.
func fourScopes(seq int, others string) string {
	const plenty = `"limit":60000000,"window_size":60`
	return fmt.Sprintf(`{"__seq__":%d,"__plugin_id":"p%[1]d","route_id":"r","user_from":["consumer.username"],
		"kong_headers":true,"show_shared_limits":true,%s"tiers":[{"name":"a","limits":[
		{"name":"tenant","scope":"tenant",%s},{"name":"endpoint","scope":"tenant+endpoint",%[3]s},
			{"name":"user","scope":"user",%[3]s}]}],
		"global":{"limits":[{"name":"all","scope":"global",%[3]s}]}}`, seq, others, plenty)
}

// noLimits is a config that asks, sets and limits nothing.
const noLimits = `{"__seq__":1,"__plugin_id":"p","observe_endpoint":false,"tiers":[]}`

// requestOf returns a request of a tenant's only user.
func requestOf(tenant string) gateway.Request {
	return gateway.Request{
		Method: "GET", Target: "/records/7", RemoteAddr: "127.0.0.1:1", Route: &gateway.Route{ID: "r", Name: "records"},
		Consumer: &gateway.Consumer{
			ID: "b32379d9-3d28-5683-a79c-72139be6e34f", Username: "alice-" + tenant, CustomID: tenant,
			Tags: []string{"tier:a"},
		},
	}
}

// baseline builds what the plugin is compared with once.
var baseline = sync.OnceValue(func() error { return build(binaries, "../internal/bench/bench-floor") })

// server is a plugin server of one thread. The plugin's own default is one for every four cores.
type server struct {
	socket string
	pid    int
}

// serve starts a program and waits until it serves.
func serve(b *testing.B, program string, args ...string) *server {
	b.Helper()
	require.NoError(b, baseline())
	prefix := shortDir(b)
	cmd := exec.Command(filepath.Join(binaries, program), append([]string{"-kong-prefix", prefix}, args...)...)
	cmd.Env = []string{"GOMAXPROCS=1"}
	stderr, err := cmd.StderrPipe()
	require.NoError(b, err)
	require.NoError(b, cmd.Start())
	log := &logtest.Text{}
	var reading sync.WaitGroup
	b.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		reading.Wait()
		_ = cmd.Wait() // the error is the kill
		if b.Failed() {
			b.Logf("the log of %s:\n%s", program, log)
		}
	})
	lines := bufio.NewReader(io.TeeReader(stderr, log))
	for serving := false; !serving; {
		line, err := lines.ReadString('\n')
		if err != nil {
			b.Fatalf("%s does not serve: %v", program, err)
		}
		serving = strings.Contains(line, "serving Kong")
	}
	reading.Go(func() {
		_, _ = io.Copy(io.Discard, lines) // until the process ends
	})
	return &server{filepath.Join(prefix, program+".socket"), cmd.Process.Pid}
}

// servePlugin starts the plugin.
func servePlugin(b *testing.B) *server {
	b.Helper()
	return serve(b, "tenant-rate-limiting", "-max-procs", "1", "-metrics-listen", "off", "-snapshot-dir", "off")
}

// cpuTime returns the user and system time of the process since its start.
func (s *server) cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var used unix.Timespec
	if err := unix.ClockGettime(int32(^s.pid<<3|2), &used); err != nil { // see "CPU-time clocks" in clock_getcpuclockid(3)
		b.Fatalf("read the CPU time of process %d: %v", s.pid, err)
	}
	return time.Duration(used.Nano())
}

// subject is an instance of a plugin with its requests and connections.
type subject struct {
	name string
	*server
	id       int32
	requests []gateway.Request // in turns
	conns    []*gateway.Conn
	denies   bool                                  // it denies all requests
	run      func(u *subject, worker, n int) error // one event or more; nil: one in the access phase
}

// newSubject starts an instance. limited means that its answers must have the headers of limits, because a faulty
// config also admits everything.
func newSubject(b *testing.B, name string, s *server, config string, limited bool, tenants ...string) *subject {
	b.Helper()
	u := &subject{name: name, server: s, id: startInstance(b, s.socket, config)}
	for _, tenant := range tenants {
		u.requests = append(u.requests, requestOf(tenant))
	}
	u.connect(b, 1)
	outcome, err := u.conns[0].HandleEvent(u.id, "access", u.requests[0])
	if err != nil || outcome.Exit != nil {
		b.Fatalf("%s: the first request: %+v, %v", name, outcome, err)
	}
	if n := strings.Count(fmt.Sprint(outcome.Header), ";q="); limited != (n == 4) {
		b.Fatalf("%s: an answer has the headers %v; want those of four limits: %t", name, outcome.Header, limited)
	}
	return u
}

// connect opens connections until there are enough.
func (u *subject) connect(b *testing.B, connections int) {
	b.Helper()
	for len(u.conns) < connections {
		c, err := gateway.Dial(u.socket)
		require.NoError(b, err)
		worker := len(u.conns)
		b.Cleanup(func() { u.conns[worker].Close() })
		u.conns = append(u.conns, c)
	}
}

// event runs the n-th event on the connection of a worker. A denial ends the connection, as in Kong.
func (u *subject) event(worker, n int) error {
	if u.run != nil {
		return u.run(u, worker, n)
	}
	outcome, err := u.conns[worker].HandleEvent(u.id, "access", u.requests[n%len(u.requests)])
	if err != nil {
		return err
	}
	if denied := outcome.Exit != nil; denied != u.denies || denied && outcome.Exit.Status != 429 {
		return fmt.Errorf("%s: %+v, want it denied: %t", u.name, outcome, u.denies)
	}
	if u.denies {
		u.conns[worker], err = gateway.Dial(u.socket)
	}
	return err
}

// leadIn is the time of load before a turn is measured, because idle processes release their leases.
const leadIn = 200 * time.Millisecond

// saturate runs events on open connections for a while, each as soon as its last event has been answered, and counts
// them.
func (u *subject) saturate(connections int, lasts time.Duration) (int, error) {
	var events atomic.Int64
	var load errgroup.Group
	end := time.Now().Add(lasts)
	for worker := range connections {
		load.Go(func() error {
			for n := worker; time.Now().Before(end); n += connections {
				if err := u.event(worker, n); err != nil {
					return err
				}
				events.Add(1)
			}
			return nil
		})
	}
	err := load.Wait()
	return int(events.Load()), err
}

// spell is the measurement of one turn.
type spell struct {
	perSecond float64 // events
	cpu       float64 // microseconds of the plugin's process for each event
	calls     float64 // of scripts in Redis for each event
	redis     float64 // microseconds of Redis for each event
	commands  float64 // of Redis for each event, with those of scripts
}

// measure measures a turn of each subject in turns, rounds times, and returns the spells of each. client is nil without
// a Redis.
func measure(b *testing.B, client *redis.Client, connections int, subjects ...*subject) [][]spell {
	b.Helper()
	const rounds, turn = 9, 400 * time.Millisecond
	measured := make([][]spell, len(subjects))
	for range shortly(rounds) {
		for i, u := range subjects {
			_, err := u.saturate(connections, leadIn)
			require.NoError(b, err)
			before, used, begun := useOf(b, client), u.cpuTime(b), time.Now()
			n, err := u.saturate(connections, turn)
			require.NoError(b, err)
			after, events := useOf(b, client), float64(n)
			measured[i] = append(measured[i], spell{
				perSecond: events / time.Since(begun).Seconds(),
				cpu:       float64((u.cpuTime(b) - used).Nanoseconds()) / 1e3 / events,
				calls:     (after.calls - before.calls) / events,
				redis:     (after.redis - before.redis) / events,
				commands:  (after.commands - before.commands) / events,
			})
		}
	}
	return measured
}

// useOf returns what a Redis has run since its start.
func useOf(b *testing.B, client *redis.Client) (use spell) {
	b.Helper()
	if client == nil {
		return use
	}
	number := func(section, name string) float64 {
		info, err := client.InfoMap(b.Context(), section).Result()
		require.NoError(b, err)
		value, err := strconv.ParseFloat(info[section][name], 64)
		require.NoError(b, err)
		return value
	}
	use.redis = (number("CPU", "used_cpu_user") + number("CPU", "used_cpu_sys")) * 1e6
	use.commands, use.calls = number("Stats", "total_commands_processed"), float64(scripts(b, client))
	return use
}

// over returns the median of one value of all turns.
func over(spells []spell, value func(spell) float64) float64 {
	var values []float64
	for _, s := range spells {
		values = append(values, value(s))
	}
	return median(values)
}

// ratio returns the median ratio of one value to the same of other turns.
func ratio(spells, others []spell, value func(spell) float64) float64 {
	var ratios []float64
	for i := range spells {
		ratios = append(ratios, value(spells[i])/value(others[i]))
	}
	return median(ratios)
}

func perSecond(s spell) float64 { return s.perSecond }
func cpu(s spell) float64       { return s.cpu }

// offer sends events at a rate for a while on open connections, and does not wait for earlier answers. It returns their
// durations from the due instants, with the wait for a free connection.
func (u *subject) offer(connections int, perSecond float64, lasts time.Duration) ([]time.Duration, error) {
	due := make(chan time.Time, int(perSecond*lasts.Seconds())+1) // holds all, so that pace never waits
	took := make([][]time.Duration, connections)
	var load errgroup.Group
	for i := range connections {
		load.Go(func() error {
			for at := range due {
				if err := u.event(i, i+len(took[i])*connections); err != nil {
					return err
				}
				took[i] = append(took[i], time.Since(at))
			}
			return nil
		})
	}
	err := pace(due, time.Duration(float64(time.Second)/perSecond), lasts)
	close(due)
	err = errors.Join(err, load.Wait())
	return slices.Concat(took...), err
}

// pace sends the instants of a steady rate at their times. It reads the kernel's timer: Go's own are a millisecond
// late when nothing else wakes the process.
func pace(due chan<- time.Time, every, lasts time.Duration) error {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return err
	}
	timer := os.NewFile(uintptr(fd), "timer")
	defer timer.Close()
	period, start := unix.NsecToTimespec(every.Nanoseconds()), time.Now()
	if err := unix.TimerfdSettime(fd, 0, &unix.ItimerSpec{Interval: period, Value: period}, nil); err != nil {
		return err
	}
	var passed [8]byte
	for n := time.Duration(0); ; {
		if _, err := io.ReadFull(timer, passed[:]); err != nil {
			return err
		}
		for range binary.NativeEndian.Uint64(passed[:]) {
			if n++; n*every > lasts {
				return nil
			}
			due <- start.Add(n * every)
		}
	}
}

// row reports a line of the output. Its cells were measured before, in turns with the other rows.
func row(b *testing.B, name string, cells map[string]float64) {
	b.Run(name, func(b *testing.B) {
		for unit, value := range cells {
			b.ReportMetric(value, unit)
		}
		b.ReportMetric(0, "ns/op") // it has no meaning
	})
}

// shortly returns n, or 1 where -short only checks that a benchmark measures.
func shortly(n int) int {
	if testing.Short() {
		return 1
	}
	return n
}

// median returns the median of values, and sorts them.
func median(values []float64) float64 {
	slices.Sort(values)
	return (values[(len(values)-1)/2] + values[len(values)/2]) / 2
}
