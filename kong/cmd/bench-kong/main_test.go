package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/kong/gateway"
)

// folder has the built programs. TestMain removes it.
var folder string

func TestMain(m *testing.M) {
	code := m.Run()
	if err := os.RemoveAll(folder); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// built builds the programs that the stand-in needs, once, and returns their folder.
var built = sync.OnceValues(func() (string, error) {
	var err error
	if folder, err = os.MkdirTemp("", "bench-kong"); err != nil {
		return "", err
	}
	build := exec.Command("go", "build", "-ldflags", "-s -w", "-o", folder+"/",
		"../demo-gateway", "../../../internal/bench/bench-floor", "../../../plugin/cmd/tenant-rate-limiting")
	if output, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the programs: %w\n%s", err, output)
	}
	return folder, nil
})

// programs builds what the stand-in needs, and returns the flags that name it.
func programs(t *testing.T) []string {
	t.Helper()
	dir, err := built()
	require.NoError(t, err)
	return []string{
		"-stand-in", filepath.Join(dir, "demo-gateway"),
		"-plugin", filepath.Join(dir, "tenant-rate-limiting"),
		"-plugin", filepath.Join(dir, "bench-floor"),
	}
}

func TestEveryRouteOfTheStandInIsMeasured(t *testing.T) {
	redis := redistest.Single(t)
	args := append(programs(t), "-redis", redis.Socket, "-connections", "4",
		"-turn", "200ms", "-lead-in", "10ms", "-rounds", "1")
	var stdout, stderr bytes.Buffer
	if status := run(t.Context(), args, &stdout, &stderr); status != 0 {
		t.Fatalf("status %d\n%s%s", status, &stdout, &stderr)
	}
	table, kongCPU := stdout.String(), 0 // the rows with CPU time of Kong: the system counts it in steps of 10 ms
	for _, title := range []string{
		"no limiter", "no-op Go plugin (floor)",
		"ours, 4 limits, in memory", "ours, 4 limits, leased", "ours, 4 limits, exact",
		"denial: bare exit (floor)", "denial: ours, in memory", "denial: ours, in memory, without its request id",
		"denial: ours, remembered",
	} {
		row := regexp.MustCompile(`(?m)^\| ` + regexp.QuoteMeta(title) + strings.Repeat(` +\| ([\d.]+)`, 5) + ` +\|`)
		cells := row.FindStringSubmatch(table)
		if cells == nil || cells[1] == "0" {
			t.Errorf("no figures of %q in\n%s", title, table)
		} else if cells[4] != "0.0" {
			kongCPU++
		}
	}
	if kongCPU == 0 {
		t.Errorf("no CPU time of Kong in\n%s", table)
	}
	if !strings.Contains(stderr.String(), "kong-local is left out: the stand-in does not have Kong's own plugins") {
		t.Errorf("rows are left out without a reason: %s", &stderr)
	}
}

func TestTurnsArePrintedAsJSON(t *testing.T) {
	args := append(programs(t), "-only", "^(none|local)$", "-turn", "50ms", "-lead-in", "0s", "-rounds", "2", "-json")
	var stdout, stderr bytes.Buffer
	if status := run(t.Context(), args, &stdout, &stderr); status != 0 {
		t.Fatalf("status %d\n%s", status, &stderr)
	}
	var order []string
	for decoder := json.NewDecoder(&stdout); ; {
		var measured sample
		if err := decoder.Decode(&measured); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		order = append(order, measured.Route)
		if measured.Requests == 0 || measured.PerSecond <= 0 || measured.P99 < measured.P50 {
			t.Errorf("a sample without figures: %+v", measured)
		}
	}
	if got := strings.Join(order, " "); got != "none local local none" {
		t.Errorf("turns were %s, want another first route in each round", got)
	}
}

// kong is a Kong in memory: what the bench uses of its Admin API, and a proxy.
type kong struct {
	mu       sync.Mutex
	database string
	plugins  string // JSON
	broken   bool   // the proxy fails
	entities map[string]entity
	denied   []string // writes without the header of the admin
}

func newKong() *kong {
	return &kong{
		database: "postgres",
		plugins:  `{"tenant-rate-limiting":true,"rate-limiting":{"version":"3.9.3"},"key-auth":true}`,
		entities: map[string]entity{},
	}
}

// ServeHTTP answers as the Admin API of Kong 3.9 does.
func (k *kong) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if r.Header.Get("Kong-Admin-Token") != "secret" {
		k.denied = append(k.denied, r.URL.Path)
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	answer := func(status int, body any) {
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(body) // the test fails elsewhere
	}
	switch name := strings.TrimPrefix(r.URL.Path, "/"); {
	case r.URL.Path == "/":
		answer(200, entity{
			"configuration": entity{"database": k.database},
			"plugins":       entity{"available_on_server": json.RawMessage(k.plugins)},
		})
	case r.Method == http.MethodPost:
		var e entity
		if err := json.NewDecoder(r.Body).Decode(&e); err != nil {
			answer(400, err.Error())
			return
		}
		id, _ := e["name"].(string)
		if e["username"] != nil {
			id, _ = e["username"].(string)
		}
		if _, taken := k.entities[name+"/"+id]; taken {
			answer(409, "unique constraint violation")
			return
		}
		k.entities[name+"/"+id] = e
		answer(201, e)
	case r.Method == http.MethodGet && name == "services/bench-kong/routes":
		if k.entities["services/bench-kong"] == nil {
			answer(404, "Not found")
			return
		}
		all := []entity{}
		for path, e := range k.entities {
			if strings.HasPrefix(path, "services/bench-kong/routes/") {
				all = append(all, entity{"id": e["name"], "name": e["name"]})
			}
		}
		answer(200, entity{"data": all})
	case r.Method == http.MethodDelete:
		if id, ok := strings.CutPrefix(name, "routes/"); ok {
			name = "services/bench-kong/routes/" + id
			for path := range k.entities {
				if strings.HasPrefix(path, "routes/"+id+"/") {
					delete(k.entities, path)
				}
			}
		}
		for path := range k.entities {
			if path == name || strings.HasPrefix(path, name+"/key-auth") {
				delete(k.entities, path)
			}
		}
		w.WriteHeader(http.StatusNoContent)
	default:
		answer(405, "Method not allowed")
	}
}

// proxy answers as the routes that the bench has added.
func (k *kong) proxy(w http.ResponseWriter, r *http.Request) {
	k.mu.Lock()
	defer k.mu.Unlock()
	name := strings.TrimPrefix(r.URL.Path, "/bench-kong/")
	key := k.entities["consumers/bench-kong/key-auth/"]
	switch {
	case k.broken:
		w.WriteHeader(500)
		return
	case k.entities["services/bench-kong/routes/bench-kong-"+name] == nil:
		w.WriteHeader(404)
		return
	case key == nil || r.Header.Get("apikey") != key["key"]:
		w.WriteHeader(401)
		return
	}
	w.Header().Set("RateLimit", "1")
	w.Header().Set("RateLimit-Limit", "1")
	if strings.HasPrefix(name, "denial") {
		w.WriteHeader(429)
	}
}

// benchOf runs the bench against a Kong.
func benchOf(t *testing.T, k *kong, more ...string) (status int, stdout, stderr string) {
	t.Helper()
	admin, proxy := httptest.NewServer(k), httptest.NewServer(http.HandlerFunc(k.proxy))
	defer admin.Close()
	defer proxy.Close()
	args := append([]string{
		"-proxy", proxy.URL, "-admin", admin.URL + "/", "-admin-header", "Kong-Admin-Token: secret",
		"-turn", "20ms", "-lead-in", "0s", "-rounds", "1", "-connections", "2",
	}, more...)
	var out, err bytes.Buffer
	status = run(t.Context(), args, &out, &err)
	return status, out.String(), err.String()
}

func TestRoutesAreAddedByTheAdminAPIAndRemoved(t *testing.T) {
	k := newKong()
	k.entities["consumers/alice"] = entity{"username": "alice"}
	// A run that was killed has left these.
	k.entities["services/bench-kong/routes/bench-kong-none"] = entity{"name": "bench-kong-none"}
	k.entities["services/bench-kong"] = entity{"name": "bench-kong"}
	status, stdout, stderr := benchOf(t, k, "-redis", "127.0.0.1:6379")
	if status != 0 || !strings.Contains(stdout, "| Kong rate-limiting, 3 windows, redis") {
		t.Errorf("status %d\n%s%s", status, stdout, stderr)
	}
	if !strings.Contains(stderr, "floor is left out: this Kong does not have the plugin bench-floor") {
		t.Errorf("not said why the floor is left out: %s", stderr)
	}
	if len(k.entities) != 1 || k.entities["consumers/alice"] == nil || len(k.denied) > 0 {
		t.Errorf("after the run Kong has %v, denied %v", k.entities, k.denied)
	}
}

func TestATurnHasAtLeastOneRequestOfEachConnection(t *testing.T) {
	status, stdout, stderr := benchOf(t, newKong(), "-only", "^none$", "-turn", "1ns", "-json")
	if status != 0 || !strings.Contains(stdout, `"requests":2`) {
		t.Errorf("status %d\n%s%s", status, stdout, stderr)
	}
}

func TestRoutesAreRemovedAfterAFailure(t *testing.T) {
	k := newKong()
	k.broken = true
	status, _, stderr := benchOf(t, k, "-ready-within", "1s")
	if status != 1 || !strings.Contains(stderr, "none: the route is not ready: status 500, want 200") {
		t.Errorf("status %d: %s", status, stderr)
	}
	if len(k.entities) != 0 {
		t.Errorf("after the failure Kong has %v", k.entities)
	}
}

func TestAKongWithoutADatabaseNeedsADeclarativeFile(t *testing.T) {
	k := newKong()
	k.database = "off"
	status, _, stderr := benchOf(t, k)
	if status != 1 || !strings.Contains(stderr, "-print-config") || !strings.Contains(stderr, "-installed") {
		t.Errorf("status %d: %s", status, stderr)
	}
}

func TestThePrintedConfigIsADecKFile(t *testing.T) {
	var stdout, stderr bytes.Buffer
	args := []string{"-print-config", "-upstream", "http://127.0.0.1:1", "-redis", "127.0.0.1:6379"}
	status := run(t.Context(), args, &stdout, &stderr)
	if status != 0 || !strings.Contains(stderr.String(), "-installed -key bench-kong-") {
		t.Fatalf("status %d: %s", status, &stderr)
	}
	config, err := gateway.ParseConfig(stdout.Bytes())
	require.NoError(t, err)
	if len(config.Routes) != len(allRoutes("127.0.0.1:6379")) || len(config.Consumers) != 1 {
		t.Errorf("the file has %d routes and %d consumers", len(config.Routes), len(config.Consumers))
	}
}

func TestWrongUsageNamesTheFlag(t *testing.T) {
	tests := []struct{ args, want string }{
		{"", "one of -admin"},
		{"-installed", "-key"},
		{"-stand-in x", "-plugin"},
		{"-stand-in x -plugin y -admin http://127.0.0.1:8001", "-admin"},
		{"-admin 127.0.0.1:8001", "-admin"},
		{"-admin http://127.0.0.1:8001 -rounds 0", "-rounds"},
		{"-admin http://127.0.0.1:8001 -turn 0s", "-turn"},
		{"-admin http://127.0.0.1:8001 rest", "no arguments"},
		{"-print-config", "-upstream"},
		{"-process redis", "-process"},
		{"-only (", "-only"},
	}
	for _, test := range tests {
		var stdout, stderr bytes.Buffer
		status := run(context.Background(), strings.Fields(test.args), &stdout, &stderr)
		if status != 2 || !strings.Contains(stderr.String(), test.want) {
			t.Errorf("%s: status %d, want 2 and %q: %s", test.args, status, test.want, &stderr)
		}
	}
}
