package spec

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/procfs"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/kong/gateway"
)

const plentiful = `{tiers: [{name: a, limits: [{name: burst, scope: tenant, limit: 1000000, window_size: 1}]}]}`

func TestAKilledPluginIsRestartedAndItsFailuresAreBounded(t *testing.T) {
	t.Parallel()
	n := start(t, deck(plentiful))
	n.want([]int{200}, "/records", "apikey", "alice")
	l := startLoad(8, 5*time.Millisecond, func() (answer, error) { return n.send("GET", "/records", "apikey", "alice") })
	awaitCount(t, "traffic", l.passed.Load, 100)
	for range 5 {
		n.crash()
		awaitCount(t, "traffic after the kill", l.passed.Load, 100)
	}
	l.end()
	t.Logf("killed 5 times under 1,600 requests a second: %d failed, %d passed", l.failed.Load(), l.passed.Load())
	assert.LessOrEqual(t, l.failed.Load(), int64(5*2*8), "two failed requests of each client at each kill")
	assert.Equal(t, int64(1), n.Counters().Spawns.Load(), "starts by Kong: the supervisor has ended")
	n.want(times(20, 200), "/records", "apikey", "alice")
}

// workerOf returns the process id of the worker that a plugin server has started last.
func workerOf(t testing.TB, server int) (pid int) {
	t.Helper()
	await.That(t, "a worker", func() bool {
		processes, err := procfs.AllProcs()
		require.NoError(t, err)
		for _, p := range processes {
			if stat, err := p.Stat(); err == nil && stat.PPID == server && stat.State != "Z" {
				pid = max(pid, p.PID)
			}
		}
		return pid != 0
	})
	return pid
}

// crash kills the worker of the plugin server, and waits for another.
func (n *node) crash() {
	n.t.Helper()
	victim := workerOf(n.t, n.runningPID())
	require.NoError(n.t, syscall.Kill(victim, syscall.SIGKILL))
	await.That(n.t, "another worker", func() bool { return workerOf(n.t, n.runningPID()) != victim })
}

// longest is when a spec gives up. No promise depends on it, so it is long enough for a busy machine.
const longest = 3 * time.Minute

// runningPID returns the process id of the plugin server, which a gateway starts beside the test.
func (n *node) runningPID() (pid int) {
	n.t.Helper()
	await.That(n.t, "a plugin process", func() bool { pid = n.PluginPID(); return pid != 0 })
	return pid
}

func TestAConfigChangeIsInForceAtOnceAndKeepsWhatWasSpent(t *testing.T) {
	t.Parallel()
	config := `{tiers: [{name: a,
		limits: [{name: year, scope: tenant, limit: %d, window_size: 31536000, algorithm: fixed_window}]}]}`
	n := start(t, deck(fmt.Sprintf(config, 3)))
	n.want([]int{200, 200, 200, 429}, "/records", "apikey", "alice")
	changed, err := gateway.ParseConfig([]byte(deck(fmt.Sprintf(config, 5))))
	require.NoError(t, err)
	require.NoError(t, n.Reload(changed))
	n.want([]int{200, 200, 429}, "/records", "apikey", "alice")
	await.That(t, "the old instances' closing", func() bool { return n.Counters().Closes.Load() > 0 })
	n.want([]int{429, 429}, "/records", "apikey", "alice")
}

// duplicate is a config that Kong's schema accepts and the plugin must deny: two limits of one name.
const duplicate = `{on_config_fault: %s,
    tiers: [{name: a, limits: [{name: hour, scope: tenant, limit: 1, window_size: 3600},
        {name: hour, scope: tenant, limit: 2, window_size: 60}]}]}`

func TestAFaultyConfigActsByOnConfigFaultAndIsLoggedWithItsPath(t *testing.T) {
	t.Parallel()
	n := start(t, deck(fmt.Sprintf(duplicate, "open")))
	n.want(times(3, 200), "/records", "apikey", "alice")
	n.log.Await(t, "tiers[0].limits[1]") // Kong reads the log beside the answers
	n = start(t, deck(fmt.Sprintf(duplicate, "closed")))
	n.want(times(3, 503), "/records", "apikey", "alice")
	if got := n.Counters().Replays.Load(); got != 0 {
		t.Errorf("%d replays, want 0", got)
	}
}

func TestValidateFindsFaultsThatKongCannotFind(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "kong.yml")
	text := deck(`{costs: {"GET /a/{x}": 1, "GET /a/{y}": 2}, tiers: [{name: a, limits: [
		{name: hour, scope: tenant, limit: 1, window_size: 3600}, {name: hour, scope: tenant, limit: 2, window_size: 60},
		{name: huge, scope: tenant, limit: 999999999989, window_size: 31622400}]}]}`)
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	out, err := exec.Command(filepath.Join(binaries, "ratelimit"), "validate", file).CombinedOutput()
	exit := new(exec.ExitError)
	if !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Errorf("exit %v, want 1\n%s", err, out)
	}
	for _, want := range []string{
		file + ":", "tiers[0].limits[1]", "tiers[0].limits[2]", "costs", "ambiguous",
		"counted exactly",
	} {
		if !strings.Contains(string(out), want) {
			t.Errorf("the output lacks %q:\n%s", want, out)
		}
	}
	for _, name := range []string{"kong.yml", "kong-llm.yml"} {
		out, err := exec.Command(filepath.Join(binaries, "ratelimit"), "validate", "../kong/"+name).CombinedOutput()
		if err != nil || !strings.Contains(string(out), ": 0 faults, 0 warnings") {
			t.Errorf("kong/%s: %v\n%s", name, err, out)
		}
	}
}

func TestASecondPluginProcessTakesTheSocketOverWithoutALostRequest(t *testing.T) {
	t.Parallel()
	prefix := shortDir(t)
	first := startPlugin(t, prefix)
	n := start(t, deck(plentiful), func(o *gateway.Options) {
		o.Servers = []gateway.PluginServer{{
			Info:   pluginInfo(t),
			Socket: filepath.Join(prefix, "tenant-rate-limiting.socket"),
		}}
	})
	n.want(times(4, 200), "/records", "apikey", "alice")
	second := startPlugin(t, prefix) // as `kong reload` does, while the first one serves
	n.want(times(4, 200), "/records", "apikey", "alice")
	first.terminate()
	n.want(times(20, 200), "/records", "apikey", "alice")
	if got := n.Counters().ServerErrors.Load(); got != 0 {
		t.Errorf("%d server errors, want 0", got)
	}
	second.terminate()
	if _, err := os.Stat(filepath.Join(prefix, "tenant-rate-limiting.socket")); err != nil {
		t.Errorf("the path was removed at the end: %v", err)
	}
	third := startPlugin(t, prefix) // renames over the stale path
	n.want(times(4, 200), "/records", "apikey", "alice")
	third.terminate()
}

// pluginInfo returns the info of the plugin.
func pluginInfo(t *testing.T) *gateway.PluginInfo {
	t.Helper()
	info, err := gateway.QueryPlugin(context.Background(), plugin(), "-dump")
	require.NoError(t, err)
	return info
}

// shortDir creates a folder with a short path for sockets. The path of t.TempDir has the name of the test.
func shortDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "k")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// process is a plugin server that the test has started.
type process struct {
	t   testing.TB
	cmd *exec.Cmd
}

// startPlugin starts a plugin server with an empty environment, as Kong does, and waits until it serves.
func startPlugin(t testing.TB, prefix string, args ...string) *process {
	t.Helper()
	cmd := exec.Command(plugin(), slices.Concat([]string{"--kong-prefix", prefix}, patient, args)...)
	cmd.Env = []string{}
	stderr, err := cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		if cmd.ProcessState == nil {
			_ = cmd.Process.Kill() // it may be ending already
			_ = cmd.Wait()
		}
	})
	lines := bufio.NewScanner(stderr)
	for lines.Scan() {
		var record struct{ Msg string }
		if err := json.Unmarshal(lines.Bytes(), &record); err != nil {
			t.Errorf("a log line is not JSON: %s", lines.Bytes())
		}
		if record.Msg == "serving Kong" {
			go func() {
				for lines.Scan() { // until the process ends
				}
			}()
			return &process{t, cmd}
		}
	}
	t.Fatalf("the plugin server does not serve: %v", lines.Err())
	return nil
}

// terminate ends the process with SIGTERM.
func (p *process) terminate() {
	p.t.Helper()
	require.NoError(p.t, p.cmd.Process.Signal(syscall.SIGTERM))
	if err := p.cmd.Wait(); err != nil {
		p.t.Errorf("after SIGTERM: %v, want exit code 0", err)
	}
}

func TestHostileTenantNamesShareNoBucket(t *testing.T) {
	inEachStore(t, func(t *testing.T, in store) {
		n := in.start(t, deck(`{tenant_from: [header.X-Org], trusted_headers: [X-Org], on_missing_tenant: skip,
			tiers: [{name: a, limits: [{name: hour, scope: tenant, limit: 1, window_size: 3600}]}]}`),
			func(o *gateway.Options) { o.MaxHeaderBytes = 4 << 20 })
		for _, org := range []string{
			"{acme}", "acme}", "{t=acme}", "acme:hour", "acme%3Ahour", "acme", "ACME", "a b", "\xff\xfe", "\xc3\x28", "é",
			strings.Repeat("x", 128),
			strings.Repeat("x", 129), strings.Repeat("x", 1<<20), "sha256:" + strings.Repeat("0", 64), "rl:{t=acme}:hour:",
		} {
			for i, want := range []int{200, 429} {
				const head = "GET /records HTTP/1.1\r\nHost: x\r\napikey: alice\r\nX-Org: "
				status := n.raw(t, head+org+"\r\nConnection: close\r\n\r\n")
				if status != want {
					t.Errorf("tenant %.40q, request %d: %d, want %d", org, i+1, status, want)
				}
			}
		}
		if got := n.Counters().Replays.Load() + n.Counters().ServerErrors.Load(); got != 0 {
			t.Errorf("%d replays and server errors, want 0", got)
		}
	})
}

func TestAClientCannotHideATrustedHeaderBehindItsOwn(t *testing.T) {
	t.Parallel()
	n := start(t, deck(`{tenant_from: [header.X-Org], trusted_headers: [X-Org], cost_header: X-Org,
		on_missing_tenant: skip, tiers: [{name: a, limits: [
		{name: hour, scope: tenant, limit: 1, window_size: 3600}]}]}`))
	var junk strings.Builder
	for i := range 110 {
		fmt.Fprintf(&junk, "A-%d: junk\r\n", i)
	}
	for _, test := range []struct {
		headers string
		want    int
	}{
		{"X-Org: real\r\n", 200},
		{"X-Org: real\r\n" + junk.String(), 429},
		{"X_Org: evil\r\nX-Org: real\r\n" + junk.String(), 400},
		{"X_Org: evil\r\nX-Org: real\r\n", 400},
		{"X-Org: evil\r\nX-Org: real\r\n", 400},
		{"X-Org:\r\nX-Org: real\r\n", 400},
		{"X-Org: evil, real\r\n", 400},
		{"X-Org: evil,real\r\n", 400},
	} {
		status := n.raw(t, "GET /records HTTP/1.1\r\nHost: x\r\napikey: alice\r\n"+test.headers+"Connection: close\r\n\r\n")
		if status != test.want {
			t.Errorf("%.60q: %d, want %d", test.headers, status, test.want)
		}
	}
}

// raw sends bytes that an HTTP client would not send.
func (n *node) raw(t *testing.T, request string) int {
	t.Helper()
	u, err := url.Parse(n.URL())
	require.NoError(t, err)
	c, err := net.Dial("tcp", u.Host)
	require.NoError(t, err)
	defer c.Close()
	if _, err := c.Write([]byte(request)); err != nil {
		t.Fatal(err)
	}
	response, err := http.ReadResponse(bufio.NewReader(c), nil)
	require.NoError(t, err)
	response.Body.Close()
	return response.StatusCode
}

// closed reports whether a connection was closed already.
func closed(err error) bool { return errors.Is(err, net.ErrClosed) }
