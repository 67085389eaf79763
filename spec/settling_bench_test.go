//go:build linux

package spec

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/kong/gateway"
)

// settlingSubject is a plugin server under requests with both phases: the access phase at the socket of the plugin, and
// the log phase at that of the companion.
type settlingSubject struct {
	*subject
	redis    *redis.Client // nil: the buckets are in memory
	settles  bool          // a limit settles
	instance int32         // of the companion
	logs     []*gateway.Conn
}

const (
	companion      = "tenant-rate-settling"
	settledReserve = 300 // tokens of a request
	settledActual  = 200 // as a source says, which is also the status of its response
)

// newSettlingSubject starts the plugin with four limits, of which the first settles to source; "": none does. Without a
// log phase the companion is not enabled.
func newSettlingSubject(
	b *testing.B, name, store, source string, hasLog bool, client *redis.Client, connections int,
) *settlingSubject {
	b.Helper()
	const tenant = `{"name":"tenant","scope":"tenant",`
	config := fourScopes(1, store+fmt.Sprintf(`"namespace":%q,"accuracy":"exact",`, name))
	budget := tenant + `"algorithm":"fixed_window","limit":50000000,"window_size":31536000` // the fullest of all
	if source != "" {
		budget += fmt.Sprintf(`,"settle":{"sources":[{"from":%q}],"reserve":%d}`, source, settledReserve)
	}
	config = strings.Replace(config, tenant+`"limit":60000000,"window_size":60`, budget, 1)
	server := servePlugin(b)
	s := &settlingSubject{redis: client, settles: source != "", subject: &subject{
		name: name, server: server, id: startInstance(b, server.socket, config),
		requests: []gateway.Request{requestOf("acme")},
	}}
	s.requests[0].Route.Service = &gateway.Service{ID: "s", Name: "records"}
	s.connect(b, connections)
	if hasLog {
		s.connectLogs(b, connections)
	}
	s.wantSettled(b)
	return s
}

// connectLogs starts an instance of the companion, and opens connections to it.
func (s *settlingSubject) connectLogs(b *testing.B, connections int) {
	b.Helper()
	for len(s.logs) < connections {
		c, err := gateway.Dial(filepath.Join(filepath.Dir(s.socket), companion+".socket"))
		require.NoError(b, err)
		b.Cleanup(func() { c.Close() })
		s.logs = append(s.logs, c)
	}
	instance, err := s.logs[0].StartInstance(companion, []byte(`{"__seq__":1,"__plugin_id":"q"}`))
	require.NoError(b, err)
	s.instance = instance
}

// request runs the phases of one request on the connections of a worker, and returns the tokens that the budget of the
// tenant has left after the first.
func (s *settlingSubject) request(worker int) (left int64, err error) {
	request := s.requests[0]
	request.Header = http.Header{"User-Agent": {"a-client/1.0"}, "Accept": {"application/json"}}
	outcome, err := s.conns[worker].HandleEvent(s.id, "access", request)
	switch {
	case err != nil:
		return 0, err
	case outcome.Exit != nil:
		return 0, fmt.Errorf("%s: denied: %d %s", s.name, outcome.Exit.Status, outcome.Exit.Body)
	case s.settles != (outcome.Shared["trl"] != nil):
		return 0, fmt.Errorf("%s: kong.ctx.shared is %v", s.name, outcome.Shared)
	}
	if s.logs != nil {
		request.Shared = map[string]any{"trl": outcome.Shared["trl"], "tokens": float64(settledActual)}
		request.Response = &gateway.Response{
			Status: settledActual, Source: "service", Header: http.Header{"Content-Type": {"application/json"}},
		}
		if _, err := s.logs[worker].HandleEvent(s.instance, "log", request); err != nil {
			return 0, err
		}
	}
	return remaining(outcome.Header)
}

// remaining returns the number of the header X-RateLimit-Remaining, however it is spelled.
func remaining(header http.Header) (int64, error) {
	for name, lines := range header {
		if strings.EqualFold(name, "X-RateLimit-Remaining") {
			return strconv.ParseInt(strings.Join(lines, ","), 10, 64)
		}
	}
	return 0, fmt.Errorf("the headers are %v, want X-RateLimit-Remaining", header)
}

// wantSettled fails if a request does not cost what it must.
func (s *settlingSubject) wantSettled(b *testing.B) {
	b.Helper()
	var left [2]int64
	for i := range left {
		var err error
		if left[i], err = s.request(0); err != nil {
			b.Fatal(err)
		}
	}
	want := int64(1)
	if s.settles {
		want = settledActual
	}
	if cost := left[0] - left[1]; cost != want {
		b.Fatalf("%s: a request costs %d tokens, want %d", s.name, cost, want)
	}
}

// saturate runs requests on all connections for a while, each as soon as the last one has ended, and counts them.
func (s *settlingSubject) saturate(lasts time.Duration) (int, error) {
	var requests atomic.Int64
	var load errgroup.Group
	end := time.Now().Add(lasts)
	for worker := range s.conns {
		load.Go(func() error {
			for time.Now().Before(end) {
				if _, err := s.request(worker); err != nil {
					return err
				}
				requests.Add(1)
			}
			return nil
		})
	}
	err := load.Wait()
	return int(requests.Load()), err
}

// cost is what one request of a turn has cost.
type cost struct {
	perSecond float64
	plugin    float64 // microseconds of the CPU of the plugin's process
	redis     float64 // microseconds of the CPU of Redis
	commands  float64 // of Redis
}

// measure measures one turn.
func (s *settlingSubject) measure(b *testing.B, turn time.Duration) cost {
	b.Helper()
	if _, err := s.saturate(leadIn); err != nil {
		b.Fatal(err)
	}
	inRedis, commands := s.redisUse(b)
	used, begun := s.cpuTime(b), time.Now()
	n, err := s.saturate(turn)
	require.NoError(b, err)
	requests := float64(n)
	c := cost{
		perSecond: requests / time.Since(begun).Seconds(),
		plugin:    float64((s.cpuTime(b) - used).Nanoseconds()) / 1e3 / requests,
	}
	inRedisNow, commandsNow := s.redisUse(b)
	c.redis, c.commands = (inRedisNow-inRedis)*1e6/requests, (commandsNow-commands)/requests
	return c
}

// redisUse returns the seconds of CPU that Redis has used, and the number of its commands.
func (s *settlingSubject) redisUse(b *testing.B) (cpu, commands float64) {
	b.Helper()
	if s.redis == nil {
		return 0, 0
	}
	number := func(section, name string) float64 {
		value, err := strconv.ParseFloat(info(b, s.redis, section)[name], 64)
		require.NoError(b, err)
		return value
	}
	return number("cpu", "used_cpu_user") + number("cpu", "used_cpu_sys"), number("stats", "total_commands_processed")
}

// BenchmarkSettling compares a request that reserves, and settles in its log phase, with one that has an exact limit
// without settling. All take turns; each number is the median of its turns.
func BenchmarkSettling(b *testing.B) {
	const rounds, turn, connections = 9, 400 * time.Millisecond, 16
	shared := redistest.Single(b)
	inRedis := fmt.Sprintf(`"strategy":"redis","fail_mode":"closed",
		"redis":{"socket":%q,"send_timeout":1000,"read_timeout":1000},`, shared.Socket)
	for _, at := range []struct {
		name, config string
		client       *redis.Client
	}{{"memory", "", nil}, {"redis", inRedis, shared.Client(b)}} {
		subjects := []*settlingSubject{
			newSettlingSubject(b, "plain", at.config, "", false, at.client, connections),
			newSettlingSubject(b, "plain-and-log-phase", at.config, "", true, at.client, connections),
			newSettlingSubject(b, "settles-to-shared", at.config, "shared.tokens", true, at.client, connections),
			newSettlingSubject(b, "settles-to-log", at.config, "log.response.status", true, at.client, connections),
		}
		measured := make([][]cost, len(subjects))
		for range shortly(rounds) {
			for i, s := range subjects {
				measured[i] = append(measured[i], s.measure(b, turn))
			}
		}
		for i, s := range subjects {
			s.wantSettled(b)
			row(b, fmt.Sprintf("store=%s/request=%s", at.name, s.name), cells(measured[i], measured[0], at.client != nil))
		}
	}
}

// cells returns the medians of the turns, beside those of plain requests.
func cells(turns, plain []cost, inRedis bool) map[string]float64 {
	of := func(value func(c, plain cost) float64) float64 {
		var values []float64
		for i, c := range turns {
			values = append(values, value(c, plain[i]))
		}
		return median(values)
	}
	cells := map[string]float64{
		"requests/s":     of(func(c, _ cost) float64 { return c.perSecond }),
		"cpu-µs/request": of(func(c, _ cost) float64 { return c.plugin }),
		"cpu-vs-plain":   of(func(c, plain cost) float64 { return c.plugin / plain.plugin }),
	}
	if inRedis {
		cells["redis-µs/request"] = of(func(c, _ cost) float64 { return c.redis })
		cells["redis-vs-plain"] = of(func(c, plain cost) float64 { return c.redis / plain.redis })
		cells["redis-commands/request"] = of(func(c, _ cost) float64 { return c.commands })
	}
	return cells
}
