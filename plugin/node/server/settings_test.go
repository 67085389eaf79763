package server

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/logtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/node/process"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func environment(pairs ...string) func(string) string {
	return func(name string) string {
		for i := 0; i < len(pairs); i += 2 {
			if pairs[i] == name {
				return pairs[i+1]
			}
		}
		return ""
	}
}

func TestAFlagWinsOverTheEnvironmentAndThatOverTheFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "settings.yml")
	const lines = "# of this node\ntime_budget: 3s\nmax-buckets: 30\ndrain_time: 7s\n"
	require.NoError(t, os.WriteFile(file, []byte(lines), 0o600))
	env := environment("TENANT_RATE_LIMITING_TIME_BUDGET", "2s", "TENANT_RATE_LIMITING_MAX_BUCKETS", "20")
	s, err := parseSettings([]string{"--config", file, "-time-budget", "1500ms"}, env, io.Discard)
	require.NoError(t, err)
	if s.TimeBudget != 1500*time.Millisecond || s.MaxBuckets != 20 || s.DrainTime != 7*time.Second ||
		s.KongPrefix != "/usr/local/kong" {
		t.Errorf("settings %+v", s)
	}
}

func TestAWrongSettingIsNamedWithItsPlaceAndTheFix(t *testing.T) {
	file := filepath.Join(t.TempDir(), "settings.yml")
	for _, c := range []struct {
		text string
		args []string
		env  []string
		want []string
	}{
		{
			args: []string{"-time-budget", "0s", "-max-buckets", "none", "-usage", "true"},
			want: []string{"-time-budget", "-max-buckets", "at least 1", "-usage", "must be on or off"},
		},
		{args: []string{"-memory-limit", "5 apples"}, want: []string{"-memory-limit", "MiB"}},
		{args: []string{"-log-level", "loud"}, want: []string{"-log-level", "loud", "must be debug, info, warn or error"}},
		{args: []string{"serve"}, want: []string{`unexpected argument "serve"`}},
		{env: []string{"TENANT_RATE_LIMITING_DRAIN_TIME", "soon"}, want: []string{"TENANT_RATE_LIMITING_DRAIN_TIME", "soon"}},
		{text: "log_level: info\ntime_bugdet: 1s\n", want: []string{file + ":2: time_bugdet", "no such setting"}},
		{text: "time_budget: fast\n", want: []string{file + ":1: time_budget", "fast"}},
		{text: "- a\n", want: []string{file + ":1"}},
		{text: "time_budget: [1s]\n", want: []string{file + ":1: time_budget", "single value"}},
		{text: "\tx", want: []string{file}},
	} {
		args := c.args
		if c.text != "" {
			require.NoError(t, os.WriteFile(file, []byte(c.text), 0o600))
			args = []string{"-config", file}
		}
		_, err := parseSettings(args, environment(c.env...), io.Discard)
		for _, want := range c.want {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%q %q: %v; want it to say %q", args, c.text, err, want)
			}
		}
	}
	_, err := parseSettings([]string{"-config", file + ".not"}, environment(), io.Discard)
	assert.True(t, errors.Is(err, os.ErrNotExist), "a missing file: %v", err)
	if _, err := parseSettings([]string{"-help"}, environment(), io.Discard); !errors.Is(err, flag.ErrHelp) {
		t.Errorf("-help: %v", err)
	}
}

func TestTheDocsListEverySettingWithItsDefault(t *testing.T) {
	docs, err := os.ReadFile("../../../docs/configuration.md")
	require.NoError(t, err)
	for _, row := range new(settings).table() {
		if want := "| `-" + row.name + "` | `" + row.value + "` |"; !strings.Contains(string(docs), want) {
			t.Errorf("docs/configuration.md has no row %q", want)
		}
	}
}

func TestDumpAndVersionNeedNoKong(t *testing.T) {
	for _, flag := range []string{"-dump", "--dump"} {
		var out, log bytes.Buffer
		if code := Run(context.Background(), []string{flag, "-kong-prefix", "/k"}, environment(), &out, &log); code != 0 {
			t.Fatalf("%s: exit code %d: %s", flag, code, log.String())
		}
		if !strings.Contains(out.String(), `"SocketPath":"/k/`) || !strings.Contains(out.String(), `"Priority":912`) {
			t.Errorf("%s: %.200s", flag, out.String())
		}
	}
	var out bytes.Buffer
	code := Run(context.Background(), []string{"--version"}, environment(), &out, io.Discard)
	if code != 0 || out.String() != process.Version+"\n" {
		t.Errorf("--version: exit code %d, %q", code, out.String())
	}
}

func TestASocketIsTakenOverAndNeverRemoved(t *testing.T) {
	dir, err := os.MkdirTemp("", "s") // short: a socket's path is
	require.NoError(t, err)
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "p.socket")
	require.NoError(t, os.WriteFile(path, []byte("stale"), 0o600))
	var log logtest.Text
	var previous *socket
	for range 3 {
		next, err := listen(path)
		require.NoError(t, err)
		require.NoError(t, next.publish(slog.New(slog.NewTextHandler(&log, nil))))
		assert.False(t, next.isTaken())
		if previous != nil {
			assert.True(t, previous.isTaken())
			require.NoError(t, previous.Close())
		}
		c, err := net.Dial("unix", path)
		require.NoError(t, err, "after a take-over")
		c.Close()
		previous = next
	}
	previous.Close()
	assert.Equal(t, 2, log.Count("another process listens on the socket"), "%s", &log)
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 || entries[0].Name() != "p.socket" {
		t.Errorf("left in the directory: %v, %v; want the socket's path alone", entries, err)
	}
	_, err = listen(filepath.Join(dir, strings.Repeat("x", 100)))
	assert.True(t, err != nil && strings.Contains(err.Error(), "-kong-prefix"), "a path that is too long: %v", err)
	_, err = listen(filepath.Join(dir, "none", "p.socket"))
	assert.True(t, err != nil && strings.Contains(err.Error(), "directory"), "a missing directory: %v", err)
}
