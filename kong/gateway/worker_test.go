package gateway

import (
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
)

func TestEveryWorkerStartsItsOwnInstance(t *testing.T) {
	g, fake := withFake(t, oneRoute, func(e *fakeEvent) { e.end() })
	for range 6 {
		send(t, g, "GET / HTTP/1.1")
	}
	configs := fake.startedConfigs()
	if len(configs) != 2 || configs[0]["__seq__"] == configs[1]["__seq__"] ||
		configs[0]["__plugin_id"] != configs[1]["__plugin_id"] {
		t.Errorf("started %v", configs)
	}
}

func TestAReloadStartsTheNewInstanceAndThenClosesTheOld(t *testing.T) {
	g, fake := withFake(t, oneRoute, func(e *fakeEvent) { e.end(setHeadersCall(map[string]any{"X-N": e.config["n"]})) })
	send(t, g, "GET / HTTP/1.1")
	send(t, g, "GET / HTTP/1.1")
	changed := deckConfig(t, strings.Replace(oneRoute, "{name: rec}", "{name: rec, config: {n: 1e15}}", 1))
	require.NoError(t, g.Reload(changed))
	for range 2 {
		if got := send(t, g, "GET / HTTP/1.1"); got.header.Get("X-N") != "1e+15" {
			t.Errorf("headers %v", got.lines)
		}
	}
	fake.mu.Lock()
	defer fake.mu.Unlock()
	if len(fake.started) != 4 || len(fake.stopped) != 2 || len(fake.instances) != 2 {
		t.Errorf("%d started, %d stopped, %d left", len(fake.started), len(fake.stopped), len(fake.instances))
	}
}

func TestAReloadWithFaultsChangesNothing(t *testing.T) {
	g, _ := withFake(t, oneRoute, func(e *fakeEvent) { e.end() })
	faulty := strings.Replace(oneRoute, "{name: rec}", "{name: rec, config: {n: x}}, {name: ghost}", 1)
	err := g.Reload(deckConfig(t, faulty))
	if err == nil || !strings.Contains(err.Error(), "services[0].routes[0].plugins[0].config.n: expected a number") ||
		!strings.Contains(err.Error(), "services[0].routes[0].plugins[1]: plugin 'ghost' not enabled") {
		t.Errorf("error %v", err)
	}
	if got := send(t, g, "GET / HTTP/1.1"); got.status != 200 {
		t.Errorf("status %d", got.status)
	}
}

func TestRequestsWaitForAStartInFlight(t *testing.T) {
	inStart, release := make(chan struct{}), make(chan struct{})
	fake := newFakePlugin(t, func(e *fakeEvent) { e.end() })
	fake.onStart = func(map[string]any) bool { close(inStart); <-release; return true }
	g := start(t, Options{
		Config: deckConfig(t, oneRoute), Workers: 1, Servers: []PluginServer{{Info: recInfo(t), Socket: fake.socket()}},
	})
	var all sync.WaitGroup
	status := make(chan int, 3)
	all.Go(func() { status <- send(t, g, "GET / HTTP/1.1").status })
	<-inStart
	for range 2 {
		all.Go(func() { status <- send(t, g, "GET / HTTP/1.1").status })
	}
	await.That(t, "three requests", func() bool { return g.counters.requests.Load() == 3 })
	close(release)
	all.Wait()
	for range 3 {
		if got := <-status; got != 200 {
			t.Errorf("status %d", got)
		}
	}
	if n := len(fake.startedConfigs()); n != 1 {
		t.Errorf("%d starts", n)
	}
}

func TestOnlyTheMostSpecificConfigRuns(t *testing.T) {
	g, _ := withFake(t, `
services:
- name: a
  host: echo.internal
  plugins: [{name: rec, config: {case: service}}]
  routes:
  - {name: r1, paths: [/r1]}
  - {name: r2, paths: [/r2], plugins: [{name: rec, config: {case: route}}]}
  - {name: keyed, paths: [/keyed], plugins: [{name: key-auth, config: {anonymous: guest}}]}
- name: b
  host: echo.internal
  routes: [{name: r3, paths: [/r3]}]
consumers:
- {username: guest}
- {username: ann, keyauth_credentials: [{key: k}], plugins: [{name: rec, config: {case: consumer}}]}
plugins:
- {name: rec, config: {case: global}}
- {name: rec, route: r2, service: a, config: {case: route+service}}
- {name: rec, route: keyed, consumer: ann, enabled: false, config: {case: never}}
`, func(e *fakeEvent) { e.end(setHeadersCall(map[string]any{"X-Case": e.config["case"]})) })
	for request, want := range map[string]string{
		"GET /r1 HTTP/1.1": "service", "GET /r2 HTTP/1.1": "route+service", "GET /r3 HTTP/1.1": "global",
		"GET /keyed HTTP/1.1": "service", "GET /keyed?apikey=k HTTP/1.1": "consumer",
	} {
		if got := send(t, g, request).header.Get("X-Case"); got != want {
			t.Errorf("%s ran %q, want %q", request, got, want)
		}
	}
}

func TestReferencesAreResolvedForThePlugin(t *testing.T) {
	t.Setenv("REC_SECRET", "hush")
	const entry = `{name: rec, instance_name: one, config: {secret: "{vault://env/rec-secret}"}}`
	document := strings.Replace(oneRoute, "{name: rec}", entry, 1)
	g, fake := withFake(t, document, func(e *fakeEvent) { e.end() })
	send(t, g, "GET / HTTP/1.1")
	config := fake.startedConfigs()[0]
	refs, _ := config["$refs"].(map[string]any)
	if config["secret"] != "hush" || refs["secret"] != "{vault://env/rec-secret}" ||
		config["plugin_instance_name"] != "one" {
		t.Errorf("config %v", config)
	}
}

// closeAndReload sends a request, ends the plugin's idle connection unnoticed, and changes the config. The next request
// starts an instance on that connection.
func closeAndReload(t *testing.T, end func(*net.UnixConn) error) *Gateway {
	t.Helper()
	fake := newFakePlugin(t, func(e *fakeEvent) { e.end() })
	g := start(t, Options{
		Config: deckConfig(t, oneRoute), Workers: 1, Servers: []PluginServer{{Info: recInfo(t), Socket: fake.socket()}},
		ClaimWait: 2 * startStep, NoticeAfter: time.Hour,
	})
	if got := send(t, g, "GET / HTTP/1.1"); got.status != 200 {
		t.Fatalf("status %d", got.status)
	}
	fake.mu.Lock()
	for conn := range fake.conns {
		if err := end(conn.(*net.UnixConn)); err != nil && !errors.Is(err, net.ErrClosed) { // by the gateway's probe
			t.Error(err)
		}
	}
	fake.mu.Unlock()
	changed := deckConfig(t, strings.Replace(oneRoute, "{name: rec}", "{name: rec, config: {n: 2}}", 1))
	require.NoError(t, g.Reload(changed))
	if got := send(t, g, "GET / HTTP/1.1"); got.status != 500 {
		t.Errorf("the request that cannot start the instance: status %d, want 500", got.status)
	}
	return g
}

func TestAStartThatCannotBeWrittenLeaksItsClaimAndStallsTheRoute(t *testing.T) {
	g := closeAndReload(t, (*net.UnixConn).Close)
	if got := send(t, g, "GET / HTTP/1.1"); got.status != 500 || g.Counters().Stalls.Load() != 1 {
		t.Errorf("status %d, %d stalls; want a 500 after the wait for the claim", got.status, g.Counters().Stalls.Load())
	}
	if got := send(t, g, "GET / HTTP/1.1"); got.status != 200 {
		t.Errorf("status %d; the claim was dropped", got.status)
	}
}

func TestAStartThatReadsTheEndDropsItsClaim(t *testing.T) {
	g := closeAndReload(t, (*net.UnixConn).CloseWrite)
	if got := send(t, g, "GET / HTTP/1.1"); got.status != 200 || g.Counters().Stalls.Load() != 0 {
		t.Errorf("status %d, %d stalls; want the next request to start the instance", got.status, g.Counters().Stalls.Load())
	}
}
