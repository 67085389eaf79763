// Package spec tests the promises of the plugin from outside: the built programs behind a gateway, through the socket
// and HTTP. The name of a test is the promise.
package spec

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/logtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/kong/gateway"
)

var (
	binaries string // the folder in which TestMain builds the programs
	withRace bool   // the specs have the race detector: see raced
)

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "spec")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	binaries = dir
	err = build(dir, "../plugin/cmd/tenant-rate-limiting", "../plugin/cmd/ratelimit", "../kong/cmd/demo-gateway")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := m.Run()
	if err := pgtest.Close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// build builds programs into a folder.
func build(dir string, args ...string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	command := exec.Command("go", append([]string{"build", "-ldflags=-s -w", "-o", dir}, args...)...)
	if out, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("build the programs: %w\n%s", err, out)
	}
	return nil
}

// plugin returns the path of the plugin server.
func plugin() string { return filepath.Join(binaries, "tenant-rate-limiting") }

// patience has the timeouts of a redis block, in JSON. Specs share a busy machine, on which an answer of Redis may take
// seconds. Only specs about a Redis that does not answer have shorter timeouts.
const patience = `"connect_timeout":10000,"send_timeout":10000,"read_timeout":10000`

// patient is how a plugin server waits for Kong, and the most for which it waits for Redis: see patience.
var patient = []string{"-time-budget", "90s"}

// serverWith is an option of start: the plugin server with flags.
func serverWith(flags ...string) func(*gateway.Options) {
	return func(o *gateway.Options) {
		o.Servers = []gateway.PluginServer{{Binary: plugin(), Args: slices.Concat(patient, flags)}}
	}
}

// racedPlugin builds the plugin server with the race detector, and returns its path.
var racedPlugin = sync.OnceValues(func() (string, error) {
	dir := filepath.Join(binaries, "race")
	return filepath.Join(dir, "tenant-rate-limiting"), build(dir, "-race", "../plugin/cmd/tenant-rate-limiting")
})

// pluginWithRace returns the path of the plugin server, which has the race detector if the specs have it.
func pluginWithRace(t testing.TB) string {
	t.Helper()
	if !withRace {
		return plugin()
	}
	binary, err := racedPlugin()
	require.NoError(t, err)
	return binary
}

// raced returns an option of start: the plugin server with the race detector, if the specs have it. A race ends the
// process with a failure.
func raced(t *testing.T) func(*gateway.Options) {
	t.Helper()
	option, binary := serverWith("-metrics-listen", "off", "-max-procs", "2"), pluginWithRace(t)
	return func(o *gateway.Options) {
		option(o)
		o.Servers[0].Binary = binary
	}
}

// node is one Kong node: a gateway and its plugin server.
type node struct {
	*gateway.Gateway
	t   testing.TB
	log *logtest.Text
}

// start starts a node with a decK file; change may alter the options.
func start(t testing.TB, deck string, change ...func(*gateway.Options)) *node {
	t.Helper()
	config, err := gateway.ParseConfig([]byte(deck))
	require.NoError(t, err)
	n := &node{t: t, log: &logtest.Text{}}
	options := gateway.Options{Config: config, Log: slog.New(slog.NewTextHandler(n.log, nil))}
	serverWith("-metrics-listen", "off")(&options)
	for _, c := range change {
		c(&options)
	}
	n.Gateway, err = gateway.New(options)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), longest)
	defer cancel()
	require.NoError(t, n.Start(ctx))
	defer n.awaitMetrics(options.Servers)
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Errorf("close the gateway: %v", err)
		}
		if strings.Contains(n.log.String(), "DATA RACE") {
			t.Error("the plugin server has a data race")
		}
		if t.Failed() {
			t.Logf("the gateway's log:\n%s", n.log)
		}
	})
	return n
}

// awaitMetrics waits until the plugin servers with metrics answer at their addresses: they serve Kong before.
func (n *node) awaitMetrics(servers []gateway.PluginServer) {
	n.t.Helper()
	for _, s := range servers {
		if i := slices.Index(s.Args, "-metrics-listen"); i >= 0 && s.Args[i+1] != "off" {
			await.That(n.t, "the metrics", func() bool { status, _ := read(s.Args[i+1], "/healthz"); return status != 0 })
		}
	}
}

// answer is a response as a client reads it.
type answer struct {
	Status int
	Header http.Header
	Body   string
}

var client = &http.Client{
	Transport: &http.Transport{MaxIdleConnsPerHost: 256},
	Timeout:   longest,
}

// get sends one request; headers are pairs of name and value.
func (n *node) get(path string, headers ...string) answer {
	n.t.Helper()
	a, err := n.send(http.MethodGet, path, headers...)
	require.NoError(n.t, err)
	return a
}

// send sends one request.
func (n *node) send(method, path string, headers ...string) (answer, error) {
	request, err := http.NewRequest(method, n.URL()+path, nil)
	if err != nil {
		return answer{}, err
	}
	for i := 0; i+1 < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	response, err := client.Do(request)
	if err != nil {
		return answer{}, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return answer{response.StatusCode, response.Header, string(body)}, err
}

// want sends the same request repeatedly, and fails the test unless it gets these statuses.
func (n *node) want(statuses []int, path string, headers ...string) {
	n.t.Helper()
	for i, status := range statuses {
		if a := n.get(path, headers...); a.Status != status {
			n.t.Errorf("request %d of %s %v: %d, want %d\n%v\n%s", i+1, path, headers, a.Status, status, a.Header, a.Body)
		}
	}
}

// times returns a status n times.
func times(n, status int) []int {
	statuses := make([]int, n)
	for i := range statuses {
		statuses[i] = status
	}
	return statuses
}

// problem is the body of a denial.
type problem struct {
	Type       string   `json:"type"`
	Title      string   `json:"title"`
	Status     int      `json:"status"`
	Detail     string   `json:"detail"`
	Violated   []string `json:"violated-policies"`
	RetryAfter int      `json:"retry_after_seconds"`
	Message    string   `json:"message"`
}

// problem decodes the body of a denial.
func (a answer) problem(t *testing.T) problem {
	t.Helper()
	var p problem
	if err := json.Unmarshal([]byte(a.Body), &p); err != nil {
		t.Fatalf("the body is not a problem document: %v\n%s", err, a.Body)
	}
	return p
}

// consumers are the tenants of most specs. The key of each is its name.
const consumers = `
consumers:
- {username: alice, custom_id: acme, tags: ["tier:enterprise", "org:acme"], keyauth_credentials: [{key: alice}],
    jwt_secrets: [{key: iss-alice, secret: s3cret}]}
- {username: bob, tags: ["tier:enterprise", "org:acme"], keyauth_credentials: [{key: bob}]}
- {username: beth, custom_id: beta, tags: ["tier:essentials"], keyauth_credentials: [{key: beth}]}
- {username: gus, custom_id: gamma, tags: ["tier:unlimited"], keyauth_credentials: [{key: gus}]}
- {username: ida, custom_id: ops, tags: ["tier:internal"], keyauth_credentials: [{key: ida}]}
- {username: tom, custom_id: typo, tags: ["tier:entreprise"], keyauth_credentials: [{key: tom}]}
- {username: anonymous}
`

// deck returns a decK file with one service, the routes /records and /search behind key-auth, and one plugin config on
// each of them. The config is in YAML flow style.
func deck(config string) string {
	return deckOf(fmt.Sprintf(`
  - {name: records, paths: [/records], plugins: [{name: key-auth, config: {anonymous: anonymous}},
      {name: tenant-rate-limiting, config: %[1]s}]}
  - {name: search, paths: [/search], plugins: [{name: key-auth}, {name: tenant-rate-limiting, config: %[1]s}]}`,
		strings.TrimSpace(config)))
}

// deckOf returns a decK file with routes and the consumers.
func deckOf(routes string) string {
	return `_format_version: "3.0"
services:
- name: echo
  url: http://echo.internal
  routes:` + routes + consumers
}

// store is where the buckets of a spec are: the first part of its plugin configs.
type store string

// start starts a node as the function start does, with its buckets in the store.
func (s store) start(t testing.TB, deck string, change ...func(*gateway.Options)) *node {
	t.Helper()
	const entry = "tenant-rate-limiting, config: {"
	return start(t, strings.ReplaceAll(deck, entry, entry+string(s)), change...)
}

// inEachStore runs a spec with the buckets in memory, and in Redis.
func inEachStore(t *testing.T, spec func(t *testing.T, in store)) {
	t.Parallel()
	t.Run("memory", func(t *testing.T) {
		t.Parallel()
		spec(t, "")
	})
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		server := redistest.Single(t)
		spec(t, store(fmt.Sprintf("strategy: redis, redis: {socket: %s, %s}, ", server.Socket, patience)))
		if size, err := server.Client(t).DBSize(t.Context()).Result(); err != nil || size == 0 {
			t.Errorf("%d keys in Redis (%v): the promise was not kept there", size, err)
		}
	})
}
