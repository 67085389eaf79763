package spec

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLimitsForAllRequestsAndForNetworksAreEnforcedExplainedAndRemovedAtRunTime(t *testing.T) {
	t.Parallel()
	g := govern(t)
	operator := &plane{t: t, dsn: g.dsn}
	config := filepath.Join(t.TempDir(), "kong.yml")
	require.NoError(t, os.WriteFile(config, []byte(deck(hourly)), 0o600))
	write := func(args ...string) {
		t.Helper()
		operator.operate(append(args, "--reason", "a test")...)
		g.awaitEnforced()
	}
	explain := func() string {
		t.Helper()
		return operator.operate("explain", "--config", config, "--plugin-route", "records", "--tenant", "acme",
			"--tier", "enterprise", "--ip", "127.0.0.1", "--path", "/records", "--method", "GET")
	}
	g.want([]int{200}, "/records", "apikey", "alice")

	write("policy", "put", "total", "--for", "all", "--limit", "2", "--window", "3600", "--force")
	g.want([]int{200, 200, 429}, "/records", "apikey", "alice")
	g.want([]int{429}, "/records", "apikey", "gus") // of another tenant
	if text := explain(); !strings.Contains(text, "2 per 3600 s (token_bucket) in total") {
		t.Errorf("the limit of all requests is not explained:\n%s", text)
	}
	write("policy", "delete", "total", "--for", "all")
	g.want([]int{200}, "/records", "apikey", "gus")

	write("policy", "put", "network", "--ip", "127.0.0.0/8", "--scope", "global", "--limit", "3", "--window", "3600")
	write("policy", "put", "network", "--ip", "::ffff:127.0.0.0/112", "--scope", "global", "--limit", "1",
		"--window", "3600")
	g.want([]int{200, 429}, "/records", "apikey", "alice") // by the narrower network
	g.want([]int{429}, "/records", "apikey", "gus")
	if text := explain(); !strings.Contains(text, "ip 127.0.0.0/16") || !strings.Contains(text, "ip 127.0.0.0/8") {
		t.Errorf("the networks are not explained:\n%s", text)
	}
	write("policy", "delete", "network", "--ip", "127.0.0.0/16")
	g.want([]int{200}, "/records", "apikey", "gus") // by the wider one
}
