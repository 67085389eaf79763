package redis

import (
	"context"
	"flag"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/leaktest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/soak"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// TestMain fails the tests when a goroutine outlives them. Properties of a store run over eight transports, so the
// short form has fewer cases of each than rapid's 100.
func TestMain(m *testing.M) {
	flag.Parse()
	if !isSet("rapid.checks") {
		if err := flag.Set("rapid.checks", strconv.Itoa(soak.Count(25, 100))); err != nil {
			panic(err)
		}
	}
	leaktest.Main(m)
}

// isSet reports whether a flag was given.
func isSet(name string) (given bool) {
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == name })
	return given
}

// at are the settings of one server. Its timeout is long, because a busy machine is no outage.
func at(s *redistest.Server, pipelined bool) schema.Redis {
	return schema.Redis{
		Host: s.Host, Port: int64(s.Port), Pipeline: pipelined,
		ConnectTimeout: 30_000, SendTimeout: 30_000, ReadTimeout: 30_000,
	}
}

// open makes a connection that ends with the test.
func open(t testing.TB, script *script, block schema.Redis) *connection {
	t.Helper()
	c, release, err := newRegistry(quiet, nil, script).acquire(block)
	require.NoError(t, err)
	t.Cleanup(release)
	return c
}

// checked is open with the start-up check done: the script is there.
func checked(t testing.TB, script *script, block schema.Redis) *connection {
	t.Helper()
	c := open(t, script, block)
	if warnings, rejection, err := c.check(t.Context()); len(warnings) > 0 || rejection != nil || err != nil {
		t.Fatalf("the start-up check: %v, %v, %v", warnings, rejection, err)
	}
	return c
}

// run runs the script once for a key.
func run(c *connection, key string) error {
	return c.Run(context.Background(), c.script, newCall([]string{key}))
}

// must sends a command that has to succeed.
func must(t testing.TB, client *redis.Client, args ...any) {
	t.Helper()
	require.NoError(t, client.Do(context.Background(), args...).Err(), "%v", args)
}

// calls is how often each command was called since CONFIG RESETSTAT, with subcommands as "script|load".
func calls(t testing.TB, client *redis.Client) map[string]int {
	t.Helper()
	text, err := client.Info(t.Context(), "commandstats").Result()
	require.NoError(t, err)
	calls := map[string]int{}
	for name, value := range parseInfo(text) {
		command, ok := strings.CutPrefix(name, "cmdstat_")
		if !ok {
			continue
		}
		count, _, _ := strings.Cut(strings.TrimPrefix(value, "calls="), ",")
		if calls[command], err = strconv.Atoi(count); err != nil {
			t.Fatal(err)
		}
	}
	return calls
}

// wantKind returns how err differs from an *Error of a kind.
func wantKind(err error, kind Kind) error {
	if e, ok := err.(*Error); !ok || e.Kind != kind {
		return fmt.Errorf("want an error of kind %q, got %T: %v", kind, err, err)
	}
	return nil
}
