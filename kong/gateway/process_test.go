package gateway

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
)

func TestThePluginIsStartedAsByKong(t *testing.T) {
	log := &logLines{}
	g := start(t, Options{
		Config: deckConfig(t, oneRoute), Log: log.logger(),
		Servers: []PluginServer{{Binary: pluginBinary(t, "good"), Args: []string{"-extra", "1"}}},
	})
	got := send(t, g, "GET / HTTP/1.1")
	if got.status != 200 || got.header.Get("X-PID") != fmt.Sprint(g.PluginPID()) {
		t.Errorf("%d %v, pid %d", got.status, got.lines, g.PluginPID())
	}
	for _, line := range []string{
		fmt.Sprintf("[rec:%d] environment of 0", g.PluginPID()),
		fmt.Sprintf("[rec:%d] arguments -kong-prefix %s -extra 1", g.PluginPID(), g.options.Prefix),
	} {
		await.That(t, line, func() bool { return strings.Contains(log.String(), line) })
	}
}

func TestAKilledPluginIsRestartedAndItsEventsAreNotReplayed(t *testing.T) {
	g := start(t, Options{Config: deckConfig(t, oneRoute), Servers: []PluginServer{{Binary: pluginBinary(t, "good")}}})
	first := g.PluginPID()
	require.NoError(t, syscall.Kill(first, syscall.SIGKILL))
	await.That(t, "a new process", func() bool { return g.PluginPID() != 0 && g.PluginPID() != first })
	await.That(t, "an answer", func() bool { return send(t, g, "GET / HTTP/1.1").status == 200 })
	if g.Counters().Spawns.Load() != 2 || g.Counters().Replays.Load() != 0 {
		t.Errorf("%d spawns, %d replays", g.Counters().Spawns.Load(), g.Counters().Replays.Load())
	}
}

func TestADyingPluginIsRespawnedAtMostOnceASecond(t *testing.T) {
	g := start(t, Options{
		Config: deckConfig(t, oneRoute), replayFor: time.Millisecond,
		Servers: []PluginServer{{Binary: pluginBinary(t, "good")}},
	})
	start := time.Now()
	for g.Counters().Spawns.Load() < 3 {
		got := send(t, g, "GET / HTTP/1.1", "Host: x", "X-Die: 1")
		if got.status != 500 {
			t.Fatalf("status %d", got.status)
		}
	}
	if took := time.Since(start); took < 900*time.Millisecond {
		t.Errorf("two respawns within %s", took)
	}
}

func TestAPluginThatCannotStartIsAnError(t *testing.T) {
	for kind, want := range map[string]string{"broken": "dump failed", "silent": "does not listen"} {
		ctx, cancel := context.WithCancel(context.Background())
		log := &logLines{onLine: func(line string) {
			if strings.Contains(line, "arguments") { // it runs
				cancel()
			}
		}}
		g, err := New(Options{
			Config: deckConfig(t, oneRoute), Log: log.logger(), Servers: []PluginServer{{Binary: pluginBinary(t, kind)}},
		})
		require.NoError(t, err)
		if err := g.Start(ctx); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v", kind, err)
		}
		cancel()
	}
}

func TestPluginInfosThatKongCannotUseAreDenied(t *testing.T) {
	for dump, want := range map[string]string{
		`x`:                          "failed decoding",
		`{}`:                         "ProtoBuf:1",
		`{"Protocol": "ProtoBuf:1"}`: "no plugin",
		`{"Protocol": "ProtoBuf:1", "Plugins": [{"Name": "x"}]}`:        "parse plugin schema",
		strings.Replace(recDump, `"Name": "rec"`, `"Name": "other"`, 1): "has the schema of",
	} {
		if _, err := ParsePluginInfo([]byte(dump)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60s: error %v", dump, err)
		}
	}
}

func TestSettingsOfBundledPluginsThatAreNotSimulatedAreDenied(t *testing.T) {
	err := CheckConfig(deckConfig(t, `
consumers: [{username: u}]
plugins:
- {name: jwt, config: {maximum_expiration: 5, claims_to_verify: [aud], cookie_names: [c], realm: r}}
- {name: key-auth, consumer: u, config: {key_in_body: true, hide_credentials: true}}
- {name: other}
`))
	for _, want := range []string{
		"plugins[0].config.claims_to_verify[0]: expected one of [exp nbf]",
		"plugins[0].config.realm: realms are not simulated",
		"plugins[0].config.maximum_expiration: a maximum is not simulated",
		"plugins[0].config.cookie_names: tokens in cookies are not simulated", "hidden credentials are not simulated",
		"plugins[1].config.key_in_body: keys in bodies are not simulated",
		"plugins[2]: plugin 'other' not enabled",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("no fault %q in %v", want, err)
		}
	}
}

func TestXRealIPIsReadFromTrustedPeersOnly(t *testing.T) {
	for _, c := range []struct {
		trusted []string
		sent    []string
		want    string
	}{
		{nil, []string{"1.1.1.1"}, "127.0.0.1"},
		{[]string{"10.0.0.0/8"}, []string{"1.1.1.1"}, "127.0.0.1"},
		{[]string{"127.0.0.1"}, nil, "127.0.0.1"},
		{[]string{"127.0.0.1"}, []string{"1.1.1.1"}, "1.1.1.1"},
		{[]string{"127.0.0.0/8"}, []string{"1.1.1.1", "2.2.2.2, 3.3.3.3"}, "3.3.3.3"},
		{[]string{"127.0.0.1"}, []string{"1.1.1.1, junk"}, "127.0.0.1"},
		{[]string{"127.0.0.1"}, []string{"2001:db8::1"}, "2001:db8::1"},
	} {
		trusted, err := parseTrusted(c.trusted)
		require.NoError(t, err)
		if ip := trusted.clientIP("127.0.0.1", http.Header{"X-Real-Ip": c.sent}); ip != c.want {
			t.Errorf("%+v: %s", c, ip)
		}
	}
	if _, err := parseTrusted([]string{"nonsense"}); err == nil {
		t.Error("nonsense is trusted")
	}
}
