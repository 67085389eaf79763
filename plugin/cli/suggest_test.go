package cli

import (
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/golden"
)

func TestSuggestWritesAFileOfPolicies(t *testing.T) {
	x := terminal{t: t}
	code := x.call("suggest", "--config", "testdata/ratelimit/kong.yml", "--log", "testdata/ratelimit/replay/access.jsonl",
		"--percentile", "90", "--headroom", "0.5")
	if code != 0 {
		t.Errorf("exit code %d", code)
	}
	golden.Check(t, "testdata/ratelimit/replay/suggested.yaml", x.output.String())
}

func TestSuggestTakesTiersFromTheConsumersOfTheFileAndCountsRequestsWithoutOne(t *testing.T) {
	x := terminal{t: t}
	code := x.call("suggest", "--config", "testdata/ratelimit/replay/tagged.yml",
		"--log", "testdata/ratelimit/replay/tagged.csv", "--endpoints", "0")
	if code != 0 {
		t.Errorf("exit code %d", code)
	}
	golden.Check(t, "testdata/ratelimit/replay/suggested_tiers.yaml", x.output.String())
}
