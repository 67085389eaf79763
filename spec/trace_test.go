package spec

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/kong/gateway"
)

// checkWait checks that a number of seconds, rounded up, is what is left of a wait that began after an instant.
func checkWait(t *testing.T, seconds any, wait time.Duration, after time.Time) {
	t.Helper()
	least := (wait - time.Since(after)).Seconds()
	if got, ok := seconds.(float64); !ok || got < least || got > wait.Seconds() {
		t.Errorf("retry_after is %v, want %v to %v", seconds, least, wait.Seconds())
	}
}

func TestKongLogsTheDecisionIfTheConfigHasLogDecisions(t *testing.T) {
	t.Parallel()
	prefix := shortDir(t)
	startPlugin(t, prefix, "-metrics-listen", "off")
	socket := filepath.Join(prefix, "tenant-rate-limiting.socket")
	const limits = `"tiers":[{"name":"a","limits":[{"name":"hour","scope":"tenant","limit":1,"window_size":3600}]}]}`
	on := startInstance(t, socket, `{"__seq__":1,"__plugin_id":"p","log_decisions":true,"namespace":"on",`+limits)
	off := startInstance(t, socket, `{"__seq__":2,"__plugin_id":"q","namespace":"off",`+limits)
	request := gateway.Request{Consumer: &gateway.Consumer{ID: "c", Username: "acme"}, RemoteAddr: "127.0.0.1:1"}
	decide := func(instance int32) gateway.Outcome {
		t.Helper()
		c, err := gateway.Dial(socket)
		require.NoError(t, err)
		defer c.Close()
		outcome, err := c.HandleEvent(instance, "access", request)
		require.NoError(t, err)
		return outcome
	}
	begun := time.Now()
	for _, want := range []map[string]any{
		{
			"result": "allowed", "mode": "enforce", "tier": "a", "policy": "hour", "limit": 1.0, "remaining": 0.0,
			"source": "memory",
		},
		{
			"result": "hard_throttled", "mode": "enforce", "tier": "a", "policy": "hour", "limit": 1.0, "remaining": 0.0,
			"source": "memory", "retry_after": nil,
		},
	} {
		outcome := decide(on)
		entry, ok := outcome.Serialized["rate_limit"].(map[string]any)
		if !ok || len(entry) != len(want) {
			t.Fatalf("the log has %v, want %v", outcome.Serialized, want)
		}
		for name, value := range want {
			if name == "retry_after" {
				checkWait(t, entry[name], time.Hour, begun)
			} else if entry[name] != value {
				t.Errorf("%s is %v, want %v", name, entry[name], value)
			}
		}
		if denied := want["result"] == "hard_throttled"; (outcome.Exit != nil) != denied {
			t.Errorf("%v: exit %v", want["result"], outcome.Exit)
		}
		if outcome := decide(off); outcome.Serialized != nil {
			t.Errorf("without log_decisions the log has %v", outcome.Serialized)
		}
	}
}
