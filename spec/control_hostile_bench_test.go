//go:build linux

package spec

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

const (
	hostileConnections = 40
	hostileRounds      = 3
	hostileTurn        = 2 * time.Second
	neighbourPause     = 5 * time.Millisecond
	mostMemory         = 300 // MB
	mostTimesQuiet     = 5
)

// hostileBody is a costly request with the token of a tenant. The body is valid JSON, or the beginning of it.
type hostileBody struct {
	name, path, body string
	slow             bool // it arrives a byte at a time
}

// hostileBodies returns bodies of up to a megabyte, each costly in another way.
func hostileBodies() []hostileBody {
	const batch = check + "/batch"
	list := func(n int, item string) string {
		return `{"checks":[` + strings.TrimSuffix(strings.Repeat(item+",", n), ",") + "]}"
	}
	var names strings.Builder
	for i := range 90_000 {
		fmt.Fprintf(&names, `"n%d":1,`, i)
	}
	long := strings.Repeat("x", 1000)
	full := fmt.Sprintf(`{"org_id":"mallory","user_id":%q,"credential_id":%[1]q,"endpoint":"GET /%s","dry_run":true}`,
		long, strings.Repeat("y", 4000))
	return []hostileBody{
		{name: "empty-checks", path: batch, body: list(340_000, "{}")},
		{name: "unknown-names", path: check, body: "{" + names.String() + `"org_id":"mallory"}`},
		{name: "unknown-names-in-a-batch", path: batch, body: list(1, "{"+names.String()+`"org_id":"mallory"}`)},
		{name: "a-hundred-full-checks", path: batch, body: list(100, full)},
		{name: "lists-in-lists", path: batch, body: list(30_000, strings.Repeat("[", 15)+strings.Repeat("]", 15))},
		{name: "one-string", path: batch, body: list(1, `{"org_id":"`+strings.Repeat(`\n`, 500_000)+`"}`)},
		{name: "one-number", path: batch, body: list(1, `{"cost":`+strings.Repeat("9", 1_000_000)+`}`)},
		{name: "no-utf8", path: batch, body: list(1, "{"+names.String()+"\"org_id\":\"\xff\",\"cost\":1e400}")},
		{name: "no-json", path: batch, body: list(100, full) + "}"},
		{name: "slow", path: batch, body: list(100, full), slow: true},
	}
}

// BenchmarkHostileBodies sends costly bodies on forty connections, all with the token of one tenant, while a neighbour
// with another token requests decisions. Each round compares the neighbour's latencies with those right before the
// attack. Each cell is the median of the rounds. times-quiet is the p99 under attack divided by the quiet one, at most
// 5. cpu-µs/answer is the CPU time of the process for each hostile answer, and rss-MB its peak memory.
func BenchmarkHostileBodies(b *testing.B) {
	p := planeOf(b, `tiers: [{name: essentials, limits: [`+
		`{name: hour, scope: tenant, limit: 1000000000, window_size: 3600, accuracy: exact}]}]`)
	a := p.serve("--log-level", "warn")
	neighbour := a.as(p.token("acme-portal", "tenant:acme"))
	neighbour.latencies(b, hostileTurn) // creates buckets and connections
	bodies := hostileBodies()
	for _, hostile := range bodies[:shortly(len(bodies))] {
		mallory := a.as(p.token("mallory-"+hostile.name, "tenant:mallory")) // with no counted faults
		turns := map[string][]float64{}
		for range shortly(hostileRounds) {
			for cell, value := range neighbour.round(b, mallory, hostile) {
				turns[cell] = append(turns[cell], value)
			}
		}
		cells := map[string]float64{"rss-MB": peakMemory(b, a.cmd.Process.Pid)}
		for cell, values := range turns {
			cells[cell] = median(values)
		}
		row(b, "body="+hostile.name, cells)
		if times := cells["times-quiet"]; times > mostTimesQuiet && !testing.Short() { // of one round it is chance
			b.Errorf("%s: the neighbour's p99 is %.1f times the quiet one, want at most %d", hostile.name, times, mostTimesQuiet)
		}
		if memory := cells["rss-MB"]; memory > mostMemory {
			b.Errorf("%s: the process took %.0f MB, want at most %d", hostile.name, memory, mostMemory)
		}
	}
}

// round measures the neighbour's decisions, first alone and then under an attack.
func (a *api) round(b *testing.B, by *api, hostile hostileBody) map[string]float64 {
	b.Helper()
	process := &server{pid: a.cmd.Process.Pid}
	quiet := percentile(a.latencies(b, hostileTurn), 99)
	before := process.cpuTime(b)
	stop := by.attack(b, hostile)
	busy := percentile(a.latencies(b, hostileTurn), 99)
	answered := float64(stop())
	return map[string]float64{
		"quiet-p99-ms": quiet, "p99-ms": busy, "times-quiet": busy / quiet,
		"hostile-answers/s": answered / hostileTurn.Seconds(),
		"cpu-µs/answer":     float64((process.cpuTime(b) - before).Microseconds()) / max(answered, 1),
	}
}

// latencies returns the sorted durations of decisions, one after the other, during a time.
func (a *api) latencies(b *testing.B, lasts time.Duration) (took []time.Duration) {
	b.Helper()
	for end := time.Now().Add(lasts); time.Now().Before(end); time.Sleep(neighbourPause) {
		start := time.Now()
		got, err := a.send(http.MethodPost, check, `{"org_id":"acme","endpoint":"GET /records"}`)
		if err != nil || got.Status != http.StatusOK {
			b.Fatalf("the neighbour got %d %s (%v)", got.Status, got.Body, err)
		}
		took = append(took, time.Since(start))
	}
	slices.Sort(took)
	return took
}

// byteTime is the pause of a slow attacker before each byte of the second half of a request.
const byteTime = 10 * time.Millisecond

// attack sends a body repeatedly on many connections until stop, which returns the number of answers. The attacker's
// threads have the lowest priority, and its request is prepared, so that its own cost does not delay the neighbour.
func (a *api) attack(b *testing.B, hostile hostileBody) (stop func() int64) {
	b.Helper()
	request := fmt.Appendf(nil, "POST %s HTTP/1.1\r\nHost: control\r\nAuthorization: Bearer %s\r\n"+
		"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
		hostile.path, a.secret, len(hostile.body), hostile.body)
	ctx, end := context.WithCancel(b.Context())
	var answers atomic.Int64
	var group sync.WaitGroup
	for range hostileConnections {
		group.Go(func() {
			runtime.LockOSThread() // the thread ends with the goroutine
			if err := unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), 19); err != nil {
				b.Error(err)
			}
			for ctx.Err() == nil {
				if err := a.attackOnce(ctx, request, hostile.slow, &answers); err != nil {
					b.Errorf("the attack failed: %v", err)
					return
				}
			}
		})
	}
	return func() int64 {
		end()
		group.Wait()
		return answers.Load()
	}
}

// attackOnce sends a request on a connection until the server closes it, or ctx ends.
func (a *api) attackOnce(ctx context.Context, request []byte, slow bool, answers *atomic.Int64) error {
	connection, err := net.Dial("tcp", strings.TrimPrefix(a.url, "http://"))
	if err != nil {
		return err
	}
	// An answer that is late does not hold up the end of the attack.
	forget := context.AfterFunc(ctx, func() { _ = connection.SetDeadline(time.Now()) })
	defer forget()
	for from := bufio.NewReader(connection); ctx.Err() == nil && write(ctx, connection, request, slow); {
		response, err := http.ReadResponse(from, nil)
		if err != nil {
			break
		}
		answers.Add(1)
		if _, err := io.Copy(io.Discard, response.Body); err != nil || response.Close {
			break
		}
	}
	return connection.Close()
}

// write writes a request, and reports whether an answer can follow. A server may answer before it has read all: then
// the rest is not taken, and the answer is there to be read.
func write(ctx context.Context, to net.Conn, request []byte, slow bool) bool {
	if !slow {
		_, err := to.Write(request)
		return err == nil || errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET)
	}
	_, err := to.Write(request[:len(request)/2])
	for i := len(request) / 2; err == nil && i < len(request) && ctx.Err() == nil; i++ {
		time.Sleep(byteTime)
		_, err = to.Write(request[i : i+1])
	}
	return err == nil
}

var peak = regexp.MustCompile(`VmHWM:\s+([0-9]+) kB`)

// peakMemory returns the peak memory of a process, in MB.
func peakMemory(b testing.TB, pid int) float64 {
	b.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	require.NoError(b, err)
	found := peak.FindSubmatch(status)
	if found == nil {
		b.Fatalf("no VmHWM in\n%s", status)
	}
	kilobytes, err := strconv.ParseFloat(string(found[1]), 64)
	require.NoError(b, err)
	return kilobytes / 1000
}
