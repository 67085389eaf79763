package spec

import (
	"fmt"
	"testing"
	"time"
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
	m := (&fleet{t: t}).join()
	const limits = `"tiers":[{"name":"a","limits":[{"name":"hour","scope":"tenant","limit":1,"window_size":3600}]}]}`
	config := func(n int, others string) int32 {
		return startInstance(t, m.socket, fmt.Sprintf(`{"__seq__":%d,"__plugin_id":"p%[1]d","namespace":"n%[1]d",%s%s`, n, others,
			limits))
	}
	on, off := config(1, `"log_decisions":true,`), config(2, "")
	exempting := config(3, `"log_decisions":true,"exempt":[{"tag":"x"},{"tenant":"acme"}],`)
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
		outcome := m.ask(t, on, by("acme"))
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
		if outcome := m.ask(t, off, by("acme")); outcome.Serialized != nil {
			t.Errorf("without log_decisions the log has %v", outcome.Serialized)
		}
	}
	entry, _ := m.ask(t, exempting, by("acme")).Serialized["rate_limit"].(map[string]any)
	if entry["result"] != "exempt" || entry["exempt_by"] != "exempt[1]" {
		t.Errorf("the log has %v, want the result exempt by exempt[1]", entry)
	}
}
