package spec

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/freeport"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/kong/gateway"
)

const (
	// chaosTenant is the tenant of the load, and chaosKey its API key.
	chaosTenant, chaosKey = "acme", "alice"
	// connectionsPerLane send a request every chaosPace each: four times the limit.
	connectionsPerLane = 4
	chaosPace          = 50 * time.Millisecond
)

// modes are the fail modes, and the names of the routes and of their limits.
var modes = []string{"open", "closed", "local"}

// sample is one request and its answer. It was decided at some instant from Sent to Answered.
type sample struct {
	Sent, Answered time.Duration
	Status         int
	Degraded       bool    // the answer has X-RateLimit-Degraded
	Type           string  // of the problem, when it is a 503
	RetryAfter     int     // seconds, when it is a 503
	Member         *member // of a fleet
}

// byRedis reports whether Redis decided.
func (s *sample) byRedis() bool { return !s.Degraded && (s.Status == 200 || s.Status == 429) }

// lane groups samples by node and route.
type lane struct {
	node      int
	mode      string
	bystander bool
}

// chaosNode is a node whose plugin serves metrics.
type chaosNode struct {
	*node
	metrics string // host:port
}

// storm is load that continues until it is stopped, with its samples.
type storm struct {
	t       *testing.T
	begun   time.Time
	nodes   []*chaosNode
	lanes   []lane
	stop    context.CancelFunc
	drivers sync.WaitGroup

	mu      sync.Mutex
	samples map[lane][]sample
	inARow  map[lane]int // decisions by Redis since the last answer of another kind
}

// startStorm starts the nodes of a stage, and the load.
func startStorm(t *testing.T, at *stage) *storm {
	t.Helper()
	s := &storm{t: t, begun: time.Now(), samples: map[lane][]sample{}, inARow: map[lane]int{}}
	for _, redis := range at.redis {
		s.nodes = append(s.nodes, chaosStart(t, at, redis))
	}
	ctx, stop := context.WithCancel(context.Background())
	s.stop = stop
	t.Cleanup(s.end) // before the nodes
	for i := range s.nodes {
		for _, mode := range modes {
			s.press(ctx, lane{node: i, mode: mode}, chaosKey)
		}
		if at.bystander != "" {
			s.press(ctx, lane{node: i, mode: "closed", bystander: true}, at.bystander)
		}
	}
	return s
}

// chaosStart starts one of the nodes of a stage, with a Redis.
func chaosStart(t *testing.T, at *stage, redis string) *chaosNode {
	t.Helper()
	timeout, routes, pools, own := at.timeout(), "", "", ""
	if at.pool != "" {
		pools = fmt.Sprintf("{name: own, %s, read_timeout: %d}", at.pool, chaosPatience.Milliseconds())
		own = "redis_pool: own, "
	}
	for _, mode := range modes {
		routes += fmt.Sprintf(`
  - {name: %[1]s, paths: [/%[1]s], plugins: [{name: key-auth},
      {name: tenant-rate-limiting, config: {strategy: redis, redis: {%[2]s, send_timeout: %[3]d, read_timeout: %[3]d},
      degraded_header: true, redis_pools: [%[5]s],
          tiers: [{name: a, limits: [&limit {name: %[1]s, scope: tenant, limit: %[4]d, window_size: 1,
              fail_mode: %[1]s}]}, {name: essentials, %[6]slimits: [*limit]}]}}]}`,
			mode, redis, timeout.Milliseconds(), chaosLimit, pools, own)
	}
	metrics := freeport.Address(t)
	args := []string{"-metrics-listen", metrics, "-nodes", strconv.Itoa(len(at.redis))}
	if timeout == chaosPatience {
		args = append(args, patient...)
	}
	return &chaosNode{start(t, deckOf(routes), func(o *gateway.Options) {
		o.Servers = []gateway.PluginServer{{
			Binary: pluginWithRace(t),
			Args:   args,
		}}
	}), metrics}
}

// press starts the load of one lane.
func (s *storm) press(ctx context.Context, l lane, key string) {
	s.lanes = append(s.lanes, l)
	for range connectionsPerLane {
		s.drivers.Go(func() {
			pace := time.NewTicker(chaosPace)
			defer pace.Stop()
			for ctx.Err() == nil {
				<-pace.C
				one, err := s.request(l, key)
				if err != nil {
					s.t.Errorf("a request got no answer: %v", err)
					return
				}
				s.note(l, one)
			}
		})
	}
}

// request sends one request of a lane.
func (s *storm) request(l lane, key string) (sample, error) {
	one := sample{Sent: s.since()}
	a, err := s.nodes[l.node].send(http.MethodGet, "/"+l.mode, "apikey", key)
	if err != nil {
		return one, err
	}
	one.Answered, one.Status, one.Degraded = s.since(), a.Status, a.Header.Get("X-RateLimit-Degraded") != ""
	if a.Status == http.StatusServiceUnavailable {
		var body problem
		if err := json.Unmarshal([]byte(a.Body), &body); err != nil {
			body.Type = a.Body // so that the check fails
		}
		one.Type = body.Type
		one.RetryAfter, _ = strconv.Atoi(a.Header.Get("Retry-After")) // 0 without the header
	}
	return one, nil
}

// note adds a sample.
func (s *storm) note(l lane, one sample) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.samples[l] = append(s.samples[l], one)
	if s.inARow[l]++; !one.byRedis() {
		s.inARow[l] = 0
	}
}

// connections returns the number of connections to a node.
func (s *storm) connections(node int) int {
	n := 0
	for _, l := range s.lanes {
		if l.node == node {
			n += connectionsPerLane
		}
	}
	return n
}

// since returns the time on the clock of the samples.
func (s *storm) since() time.Duration { return time.Since(s.begun) }

// end stops the load and waits until the last answer is there.
func (s *storm) end() {
	s.stop()
	s.drivers.Wait()
}

// awaitRedis waits until, from now on, Redis has decided settled requests in a row in every lane.
func (s *storm) awaitRedis(what string) {
	s.t.Helper()
	s.mu.Lock()
	clear(s.inARow)
	s.mu.Unlock()
	await.That(s.t, what, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, l := range s.lanes {
			if s.inARow[l] < settled {
				return false
			}
		}
		return true
	})
}

// awaitLimits waits until Redis has admitted and denied in every lane after an instant: limits are in force.
func (s *storm) awaitLimits(after time.Duration) {
	s.t.Helper()
	await.That(s.t, "admissions and denials by Redis", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, l := range s.lanes {
			decided := map[int]bool{}
			for _, one := range s.samples[l] {
				if one.Sent >= after && one.byRedis() {
					decided[one.Status] = true
				}
			}
			if !decided[200] || !decided[429] {
				return false
			}
		}
		return true
	})
}

// numbers maps the names and labels of a plugin's metrics to their values.
type numbers map[string]float64

// scrape returns a node's metrics, or nil while the plugin does not answer.
func (n *chaosNode) scrape() numbers {
	response, err := client.Get("http://" + n.metrics + "/metrics")
	if err != nil {
		return nil
	}
	defer response.Body.Close()
	found := numbers{}
	for lines := bufio.NewScanner(response.Body); lines.Scan(); {
		name, text, ok := strings.Cut(lines.Text(), "} ")
		if ok {
			name += "}"
		} else if name, text, ok = strings.Cut(lines.Text(), " "); !ok || name == "#" {
			continue
		}
		if value, err := strconv.ParseFloat(text, 64); err == nil {
			found[name] = value
		}
	}
	return found
}

// sum adds up the series of a metric that have all of these labels, each written name="value".
func (n numbers) sum(metric string, labels ...string) float64 {
	total := 0.0
series:
	for name, value := range n {
		if name != metric && !strings.HasPrefix(name, metric+"{") {
			continue
		}
		for _, label := range labels {
			if !strings.Contains(name, label) {
				continue series
			}
		}
		total += value
	}
	return total
}

// String lists our own metrics, one a line.
func (n numbers) String() string {
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(n)) {
		if strings.HasPrefix(name, "rate_limiter_") {
			fmt.Fprintln(&text, name, n[name])
		}
	}
	return text.String()
}
