package metrics

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/memory"
)

// testTimeout bounds every wait of these tests.
const testTimeout = 20 * time.Second

// records collects log lines, and can wait for them.
type records struct {
	mu    sync.Mutex
	lines []record
	more  chan struct{} // has room for one
}

type record struct {
	Level, Msg, Address, Setting, Error string
}

func newRecords() *records { return &records{more: make(chan struct{}, 1)} }

func (r *records) log() *slog.Logger { return slog.New(slog.NewJSONHandler(r, nil)) }

// Write takes one line.
func (r *records) Write(line []byte) (int, error) {
	var one record
	if err := json.Unmarshal(line, &one); err != nil {
		return 0, err
	}
	r.mu.Lock()
	r.lines = append(r.lines, one)
	r.mu.Unlock()
	select {
	case r.more <- struct{}{}:
	default:
	}
	return len(line), nil
}

// withPrefix returns the lines whose message begins with text.
func (r *records) withPrefix(text string) []record {
	r.mu.Lock()
	defer r.mu.Unlock()
	var found []record
	for _, line := range r.lines {
		if strings.HasPrefix(line.Msg, text) {
			found = append(found, line)
		}
	}
	return found
}

// await waits for the first line whose message begins with text.
func (r *records) await(t *testing.T, text string) record {
	t.Helper()
	deadline := time.NewTimer(testTimeout)
	defer deadline.Stop()
	for {
		if found := r.withPrefix(text); len(found) > 0 {
			return found[0]
		}
		select {
		case <-r.more:
		case <-deadline.C:
			t.Fatalf("nothing was logged that begins with %q", text)
		}
	}
}

// running is a server that runs until stop or the end of the test.
type running struct {
	*Server
	log     *records
	stop    func()
	address string // from the log, once listening has waited for it
}

func start(t *testing.T, o ServerOptions) running {
	t.Helper()
	log := newRecords()
	o.Log = log.log()
	if o.Metrics == nil {
		o.Metrics = New("1.2.3", Sources{})
	}
	s, err := NewServer(o)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	stop := sync.OnceFunc(func() {
		cancel()
		assert.NoError(t, <-ended, "Run")
	})
	t.Cleanup(stop)
	return running{Server: s, log: log, stop: stop}
}

// listening waits until the server listens.
func (r running) listening(t *testing.T) running {
	t.Helper()
	r.address = r.log.await(t, "serving metrics").Address
	return r
}

type answer struct {
	status int
	header http.Header
	body   string
}

// get sends one request, and fails the test without an answer.
func get(t *testing.T, method, url string, header ...string) answer {
	t.Helper()
	got, err := send(t.Context(), method, url, header...)
	require.NoError(t, err)
	return got
}

// send sends one request on a connection of its own. header has names and values in turn.
func send(ctx context.Context, method, url string, header ...string) (answer, error) {
	request, err := http.NewRequestWithContext(ctx, method, url, http.NoBody)
	if err != nil {
		return answer{}, err
	}
	for i := 0; i < len(header); i += 2 {
		request.Header.Set(header[i], header[i+1])
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: testTimeout}
	response, err := client.Do(request)
	if err != nil {
		return answer{}, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return answer{response.StatusCode, response.Header, string(body)}, err
}

func TestMetricsAreServedAsTextAndAsOpenMetrics(t *testing.T) {
	m := New("1.2.3", everySource())
	m.Observe(busy(t))
	s := start(t, ServerOptions{Metrics: m, Address: "127.0.0.1:0"}).listening(t)
	url := "http://" + s.address + "/metrics"
	text := get(t, "GET", url)
	if text.status != 200 || !strings.HasPrefix(text.header.Get("Content-Type"), "text/plain; version=0.0.4") {
		t.Errorf("answer is %d %v, want Prometheus's text", text.status, text.header)
	}
	for _, want := range []string{
		`rate_limiter_requests_total{endpoint="(none)",mode="enforce",org_id="acme",result="allowed",tier="gold"} 1`,
		`rate_limiter_degraded{store="redis:6379"} 1`,
		`rate_limiter_build_info{goversion="go`,
		"go_goroutines ", "process_open_fds ",
		`promhttp_metric_handler_errors_total{cause="gathering"} 0`,
	} {
		assert.True(t, strings.Contains(text.body, "\n"+want), "no %s in\n%s", want, text.body)
	}
	open := get(t, "GET", url, "Accept", "application/openmetrics-text; version=1.0.0")
	kind, end := open.header.Get("Content-Type"), open.body[max(0, len(open.body)-20):]
	if open.status != 200 || !strings.HasPrefix(kind, "application/openmetrics-text; version=1.0.0") ||
		!strings.HasSuffix(end, "# EOF\n") {
		t.Errorf("answer is %d %v and ends in %q, want OpenMetrics", open.status, open.header, end)
	}
}

func TestAScrapeWithoutSomeNumbersIsAnsweredAndCounted(t *testing.T) {
	m := withNumbers(Read(func() Process { panic("gone") }), of(memory.Stats{Buckets: 7}))
	s := start(t, ServerOptions{Metrics: m, Address: "127.0.0.1:0"}).listening(t)
	first := get(t, "GET", "http://"+s.address+"/metrics")
	if first.status != 200 || !strings.Contains(first.body, "\nrate_limiter_local_buckets 7\n") {
		t.Errorf("answer is %d:\n%s\nwant the other numbers", first.status, first.body)
	}
	s.log.await(t, "error gathering metrics")
	second := get(t, "GET", "http://"+s.address+"/metrics")
	if !strings.Contains(second.body, `promhttp_metric_handler_errors_total{cause="gathering"} 1`) {
		t.Errorf("the fault was not counted:\n%s", second.body)
	}
}

func TestOnlyThreePathsAreReadAndNothingIsWritten(t *testing.T) {
	s := start(t, ServerOptions{Address: "127.0.0.1:0"}).listening(t)
	s.SetState(Serving)
	for _, test := range []struct {
		method, path string
		want         int
	}{
		{"GET", "/metrics", 200},
		{"HEAD", "/metrics", 200},
		{"HEAD", "/healthz", 200},
		{"HEAD", "/readyz", 200},
		{"POST", "/metrics", 405},
		{"DELETE", "/healthz", 405},
		{"GET", "/", 404},
		{"GET", "/metrics/", 404},
		{"GET", "/debug/pprof/", 404},
		{"POST", "/", 404},
	} {
		got := get(t, test.method, "http://"+s.address+test.path)
		if got.status != test.want || (test.method == "HEAD" && got.body != "") {
			t.Errorf("%s %s: %d %q, want %d", test.method, test.path, got.status, got.body, test.want)
		}
	}
	got := get(t, "GET", "http://"+s.address+"/metrics", "X-Long", strings.Repeat("x", 2*headerBytes))
	if got.status != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("a header of %d bytes: %d, want 431", 2*headerBytes, got.status)
	}
}

func TestAnAddressThatOthersReachIsAFaultUnlessAllowed(t *testing.T) {
	for _, test := range []struct {
		address       string
		alone, remote bool // accepted without and with AllowRemote
	}{
		{"", true, true},
		{"127.0.0.1:9542", true, true},
		{"127.8.8.8:0", true, true},
		{"[::1]:9542", true, true},
		{"[::ffff:127.0.0.1]:9542", true, true},
		{"localhost:9542", true, true},
		{":9542", false, true},
		{"0.0.0.0:9542", false, true},
		{"[::]:9542", false, true},
		{"192.0.2.7:9542", false, true},
		{"kong.internal:9542", false, true},
		{"127.0.0.1", false, false},
		{"127.0.0.1:http", false, false},
		{"127.0.0.1:65536", false, false},
		{"9542", false, false},
	} {
		for _, allow := range []bool{false, true} {
			_, err := NewServer(ServerOptions{
				Metrics: New("1", Sources{}), Address: test.address, AllowRemote: allow,
				Log: slog.New(slog.DiscardHandler),
			})
			if accepted := err == nil; accepted != test.alone && !allow || accepted != test.remote && allow {
				t.Errorf("%q with AllowRemote %v: %v", test.address, allow, err)
			}
			if err != nil && !strings.HasPrefix(err.Error(), `metrics-listen: "`+test.address+`": `) {
				t.Errorf("the error does not name the setting and its value: %v", err)
			}
		}
	}
}

func TestAPortInUseIsWaitedFor(t *testing.T) {
	other, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := start(t, ServerOptions{Address: other.Addr().String()})
	warning := s.log.await(t, "listening for metrics failed")
	if warning.Level != "WARN" || warning.Setting != Setting || warning.Address != other.Addr().String() ||
		!strings.Contains(warning.Error, "in use") {
		t.Errorf("warned with %+v; want the setting, its address and what is wrong", warning)
	}
	require.NoError(t, other.Close())
	if line := s.log.await(t, "serving metrics"); line.Level != "INFO" || line.Address != warning.Address {
		t.Errorf("logged %+v, want INFO and the address %s", line, warning.Address)
	}
	got := get(t, "GET", "http://"+warning.Address+"/healthz")
	assert.True(t, got.status == 200, "answer is %d", got.status)
	n := len(s.log.withPrefix("listening for metrics failed"))
	assert.True(t, n == 1, "warned %d times, want once", n)
}

func TestAProcessThatNeverGetsThePortEndsAllTheSame(t *testing.T) {
	other, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer other.Close()
	start(t, ServerOptions{Address: other.Addr().String()}).stop()
}

func TestTheNewProcessGetsThePortAndTheOldOneFinishesItsScrape(t *testing.T) {
	entered, release := make(chan struct{}, 1), make(chan struct{})
	m := withNumbers(Read(func() memory.Stats {
		entered <- struct{}{}
		<-release
		return memory.Stats{Buckets: 7, Evicted: 9}
	}))
	superseded := make(chan struct{})
	first := start(t, ServerOptions{
		Metrics: m, Address: "127.0.0.1:0", Superseded: superseded,
		shutdownTime: testTimeout, // the new process tries once a second to listen
	}).listening(t)
	first.SetState(Serving)
	address := first.address
	second := start(t, ServerOptions{Metrics: New("new", Sources{}), Address: address})

	var scraped answer
	var failed error
	scraping := make(chan struct{})
	go func() {
		defer close(scraping)
		scraped, failed = send(t.Context(), "GET", "http://"+address+"/metrics")
	}()
	<-entered
	close(superseded)
	second.listening(t)
	got := get(t, "GET", "http://"+address+"/healthz")
	assert.True(t, strings.Contains(got.body, `"version":"new"`), "%s answers %s, want the new process", address, got.body)
	close(release)
	<-scraping
	if failed != nil || scraped.status != 200 || !strings.Contains(scraped.body, "rate_limiter_local_buckets 7") {
		t.Errorf("the old process answered the running scrape with %d, %v:\n%s", scraped.status, failed, scraped.body)
	}
	first.log.await(t, "metrics are served by the process that has taken over")
}

func TestASilentClientDoesNotDelayTheEnd(t *testing.T) {
	// The connection must not end by itself before the server does.
	s := start(t, ServerOptions{
		Address: "127.0.0.1:0", headerTime: testTimeout, shutdownTime: time.Millisecond,
	}).listening(t)
	s.SetState(Serving)
	silent, err := net.Dial("tcp", s.address)
	require.NoError(t, err)
	defer silent.Close()
	if _, err := io.WriteString(silent, "GET /metrics HTTP/1.1\r\n"); err != nil {
		t.Fatal(err)
	}
	got := get(t, "GET", "http://"+s.address+"/healthz")
	assert.True(t, got.status == 200, "answer is %d", got.status) // so the one before it was accepted, too
	s.stop()
	s.log.await(t, "closed connections with unfinished requests for metrics")
}
