//go:build linux

package spec

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

const (
	hostileConnections = 40
	hostileRounds      = 3
	hostileTurn        = 2 * time.Second
	neighbourPause     = 5 * time.Millisecond
	mostMemory         = 300 // MB
)

// hostileBody is what the holder of an org's token sends to cost much: body is legal JSON, or the beginning of it.
type hostileBody struct {
	name, path, body string
	slow             bool // it arrives a byte at a time
}

// hostileBodies are bodies of up to a megabyte, each costly in another way.
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
	full := fmt.Sprintf(`{"org_id":"mallory","user_id":%q,"credential_id":%[1]q,"endpoint":"GET /%s","dry_run":true}`, long, strings.Repeat("y", 4000))
	return []hostileBody{
		{name: "empty-checks", path: batch, body: list(340_000, "{}")},
		{name: "unknown-names", path: check, body: "{" + names.String() + `"org_id":"mallory"}`},
		{name: "unknown-names-in-a-batch", path: batch, body: list(1, "{"+names.String()+`"org_id":"mallory"}`)},
		{name: "a-hundred-full-checks", path: batch, body: list(100, full)},
		{name: "lists-in-lists", path: batch, body: list(30_000, strings.Repeat("[", 15)+strings.Repeat("]", 15))},
		{name: "one-string", path: batch, body: list(1, `{"org_id":"`+strings.Repeat(`\n`, 500_000)+`"}`)},
		{name: "one-number", path: batch, body: list(1, `{"cost":`+strings.Repeat("9", 1_000_000)+`}`)},
		{name: "no-json", path: batch, body: list(100, full) + "}"},
		{name: "slow", path: batch, body: list(100, full), slow: true},
	}
}

// BenchmarkHostileBodies has forty connections send bodies that cost much, all with the token of one org, while a
// neighbour with a token of its own has decisions made. It compares how long the neighbour's take with what they take
// while nobody else asks, in turns. Each time is the median of the turns; times-quiet is the one divided by the other,
// holds-5x is 1 where that is at most 5, cpu-µs/answer is what the process computed in an attack for each hostile
// answer, and rss-MB is the most memory that it had so far.
func BenchmarkHostileBodies(b *testing.B) {
	p := planeOf(b, `tiers: [{name: essentials, limits: [{name: hour, scope: tenant, limit: 1000000000, window_size: 3600, accuracy: exact}]}]`)
	a := p.serve("--log-level", "warn")
	neighbour, mallory := a.as(p.token("acme-portal", "tenant:acme")), a.as(p.token("mallory-portal", "tenant:mallory"))
	neighbour.latencies(b, hostileTurn) // buckets and connections are there
	process := &server{pid: a.cmd.Process.Pid}
	for _, hostile := range hostileBodies() {
		var quiet, busy, answers, work []float64
		for range hostileRounds {
			quiet = append(quiet, percentile(neighbour.latencies(b, hostileTurn), 99))
			began := process.cpuTime(b)
			stop := mallory.attack(b, hostile)
			busy = append(busy, percentile(neighbour.latencies(b, hostileTurn), 99))
			answered := float64(stop())
			answers = append(answers, answered/hostileTurn.Seconds())
			work = append(work, float64((process.cpuTime(b)-began).Microseconds())/max(answered, 1))
		}
		memory := a.peakMemory(b)
		cells := map[string]float64{
			"quiet-p99-ms": median(quiet), "p99-ms": median(busy), "times-quiet": median(busy) / median(quiet), "holds-5x": 0,
			"hostile-answers/s": median(answers), "cpu-µs/answer": median(work), "rss-MB": memory,
		}
		if cells["times-quiet"] <= 5 {
			cells["holds-5x"] = 1
		}
		row(b, "body="+hostile.name, cells)
		if memory > mostMemory {
			b.Errorf("%s: the process took %.0f MB, want at most %d", hostile.name, memory, mostMemory)
		}
	}
}

// latencies are how long decisions took, one after the other for a while, in order.
func (a *api) latencies(b *testing.B, lasts time.Duration) (took []time.Duration) {
	b.Helper()
	for end := time.Now().Add(lasts); time.Now().Before(end); time.Sleep(neighbourPause) {
		begun := time.Now()
		got, err := a.send(http.MethodPost, check, `{"org_id":"acme","endpoint":"GET /records"}`)
		if err != nil || got.Status != http.StatusOK {
			b.Fatalf("the neighbour is answered by %d %s (%v)", got.Status, got.Body, err)
		}
		took = append(took, time.Since(begun))
	}
	slices.Sort(took)
	return took
}

// attack sends a body over and over until stop is called, which returns how many answers there were. It writes bytes
// that were made before, and reads as little as it can: what it costs to attack is not measured.
func (a *api) attack(b *testing.B, hostile hostileBody) (stop func() int64) {
	b.Helper()
	var (
		answers  atomic.Int64
		stopped  atomic.Bool
		together sync.WaitGroup
	)
	head := fmt.Sprintf("POST %s HTTP/1.1\r\nHost: control\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n",
		hostile.path, a.secret, len(hostile.body))
	request := []byte(head + hostile.body)
	for range hostileConnections {
		together.Go(func() {
			for !stopped.Load() {
				connection, err := net.Dial("tcp", strings.TrimPrefix(a.url, "http://"))
				if err != nil {
					b.Error(err)
					return
				}
				answers.Add(hostile.send(connection, request, &stopped))
				connection.Close()
			}
		})
	}
	return func() int64 {
		stopped.Store(true)
		together.Wait()
		return answers.Load()
	}
}

// send sends a request over and over on one connection, until it is closed or the attack is stopped, and returns how
// often it was answered.
func (h hostileBody) send(connection net.Conn, request []byte, stopped *atomic.Bool) (answers int64) {
	from := bufio.NewReader(connection)
	for !stopped.Load() {
		if !h.write(connection, request, stopped) {
			return answers
		}
		response, err := http.ReadResponse(from, nil)
		if err != nil {
			return answers
		}
		answers++
		_, err = io.Copy(io.Discard, response.Body)
		response.Body.Close()
		if err != nil || response.Close {
			return answers
		}
	}
	return answers
}

// write writes a request: all of it, or half of it and then a byte at a time. A server may answer before it has read
// all: then the rest is not taken, and the answer is there to be read.
func (h hostileBody) write(to net.Conn, request []byte, stopped *atomic.Bool) bool {
	if !h.slow {
		_, err := to.Write(request)
		return err == nil || errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET)
	}
	_, err := to.Write(request[:len(request)/2])
	for i := len(request) / 2; err == nil && i < len(request) && !stopped.Load(); i++ {
		time.Sleep(10 * time.Millisecond)
		_, err = to.Write(request[i : i+1])
	}
	return err == nil && !stopped.Load()
}

var peak = regexp.MustCompile(`VmHWM:\s+([0-9]+) kB`)

// peakMemory is the most memory that the process has had, in MB.
func (a *api) peakMemory(b *testing.B) float64 {
	b.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", a.cmd.Process.Pid))
	if err != nil {
		b.Fatal(err)
	}
	found := peak.FindSubmatch(status)
	if found == nil {
		b.Fatalf("no VmHWM in\n%s", status)
	}
	kilobytes, err := strconv.ParseFloat(string(found[1]), 64)
	if err != nil {
		b.Fatal(err)
	}
	return kilobytes / 1000
}
