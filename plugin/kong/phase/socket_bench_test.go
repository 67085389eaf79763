package phase

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/response"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/kong/wire/kongtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// BenchmarkSocket drives events through the sockets of built plugin servers, in turns within one run. It compares
// events per second and, with /proc, the CPU time per event. Every server is a process with one thread, so the ratios
// hold on a noisy machine:
//
//   - ours: four limits in memory and all headers;
//   - noop: asks the same question through our server, sets the same headers, and limits nothing;
//   - asks-nothing: ours with a config that needs no fact, which is the least that a plugin costs;
//   - go-pdk: asks the same question and sets headers with go-pdk's client and server, and limits nothing.
func BenchmarkSocket(b *testing.B) {
	const connections, turn = 8, 2000
	dir := b.TempDir()
	config := strings.Replace(fourLimits("", routeScoped), "{", `{"__seq__":1,`, 1)
	path := func(name string) string { return filepath.Join(dir, name+".socket") }
	process := buildServer(b, dir, "ours", "../../cmd/tenant-rate-limiting",
		"-log-level", "error", "-metrics-listen", "off")
	ours := startPlugin(b, process, path("ours"), config)
	gopdk := buildServer(b, dir, "gopdk", "../wire/internal/gopdkplugin")
	noop := exec.Command(os.Args[0])
	noop.Env = []string{noopSocket + "=" + path("noop")}
	drivers := []struct {
		name string
		*driver
	}{
		{"ours", ours},
		{"noop", startPlugin(b, noop, path("noop"), config)},
		{"asks-nothing", ours.startAnother(`{"__seq__":2,"tiers":[{"name":"a"}]}`)},
		{"go-pdk", startPlugin(b, gopdk, path("gopdk"), `{"__seq__":1}`)},
	}
	took, used := make([]time.Duration, len(drivers)), make([]time.Duration, len(drivers))
	events := 0
	for b.Loop() {
		for i, d := range drivers {
			start, before := time.Now(), d.cpu()
			d.run(b, connections, turn)
			took[i] += time.Since(start)
			used[i] += d.cpu() - before
		}
		events += turn
	}
	for i, d := range drivers {
		b.ReportMetric(float64(events)/took[i].Seconds(), d.name+"-events/s")
		b.ReportMetric(float64(used[i].Nanoseconds())/1e3/float64(events), d.name+"-cpu-µs")
	}
	b.ReportMetric(0, "ns/op") // the sum of all drivers has no meaning
}

// driver plays Kong's workers.
type driver struct {
	process  int
	instance int32
	conns    []*kongtest.Worker
	dial     func() *kongtest.Worker
}

// buildServer builds a plugin server that serves the socket beside its executable.
func buildServer(b *testing.B, dir, name, source string, arguments ...string) *exec.Cmd {
	b.Helper()
	binary := filepath.Join(dir, name)
	if out, err := exec.Command("go", "build", "-o", binary, source).CombinedOutput(); err != nil {
		b.Fatalf("build %s: %v\n%s", source, err, out)
	}
	return exec.Command(binary, append(arguments, "-kong-prefix", dir)...)
}

// noopSocket is the environment variable that makes this executable serve a plugin that limits nothing. Its value is
// the path of the socket.
const noopSocket = "NOOP_PLUGIN_SOCKET"

// serveNoop serves a plugin that limits nothing, and returns the exit code.
func serveNoop(socket string) int {
	listener, err := net.Listen("unix", socket)
	if err == nil {
		err = New(Options{Build: buildUnlimited}).Serve(context.Background(), listener)
	}
	fmt.Fprintln(os.Stderr, err)
	return 1
}

// buildUnlimited builds paths that admit every request.
func buildUnlimited(config schema.Config, plan *resolve.Plan) (*admit.Decider, func(), error) {
	decider := &admit.Decider{Buckets: bucketsFunc(admitAll), Renderer: response.New(config, nil)}
	decider.Policies.Store(plan)
	return decider, nil, nil
}

// startPlugin starts a plugin server with one thread, until the benchmark ends, and an instance on it.
func startPlugin(b *testing.B, process *exec.Cmd, socket, config string) *driver {
	b.Helper()
	process.Env = append(process.Env, "GOMAXPROCS=1")
	process.Stderr = os.Stderr
	if err := process.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = process.Process.Kill() // it fails if the process has ended
		_ = process.Wait()         // the error is the kill
	})
	d := &driver{process: process.Process.Pid, dial: func() *kongtest.Worker {
		c, err := net.Dial("unix", socket)
		if err != nil {
			return nil
		}
		b.Cleanup(func() { c.Close() })
		return kongtest.NewWorker(b, c)
	}}
	for deadline := time.Now().Add(10 * time.Second); len(d.conns) == 0; {
		if k := d.dial(); k != nil {
			d.conns = append(d.conns, k)
		} else if time.Now().After(deadline) {
			b.Fatalf("nothing listens at %s", socket)
		}
	}
	d.instance = d.conns[0].StartRaw([]byte(config))
	return d
}

// startAnother starts another instance on the same server and returns its driver.
func (d *driver) startAnother(config string) *driver {
	return &driver{process: d.process, dial: d.dial, conns: d.conns, instance: d.conns[0].StartRaw([]byte(config))}
}

// cpu returns the CPU time of all threads of the server, or 0 without /proc.
func (d *driver) cpu() (total time.Duration) {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", d.process)) // the pattern is valid
	for _, thread := range threads {
		text, err := os.ReadFile(thread)
		if err != nil {
			continue // it has ended
		}
		var ns int64
		if _, err := fmt.Sscan(string(text), &ns); err == nil {
			total += time.Duration(ns)
		}
	}
	return total
}

// run spreads events over connections.
func (d *driver) run(b *testing.B, connections, events int) {
	for len(d.conns) < connections {
		d.conns = append(d.conns, d.dial())
	}
	var group sync.WaitGroup
	for _, k := range d.conns {
		k.Answers = commonAnswers()
		group.Go(func() {
			for range events / connections {
				if err := k.FastEvent(d.instance); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	group.Wait()
}
