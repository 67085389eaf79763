package promtest_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/promtest"
)

func TestUnpublishedNamesAndLabelsAreFaults(t *testing.T) {
	list := filepath.Join(t.TempDir(), "list")
	text := "lamps gauge {room,colour}\n    How many shine.\n" +
		"waits_seconds histogram {room}\n    How long.\ndoors gauge {}\n    All.\n"
	require.NoError(t, os.WriteFile(list, []byte(text), 0o600))
	published := promtest.ReadPublished(t, list)
	for expression, want := range map[string]string{
		`sum by (room) (rate(lamps{colour=~"red|by (age)", instance="a"}[5m] offset 1m)) > 0.5`:  "",
		`histogram_quantile(0.9, sum(rate(waits_seconds_bucket{le!="+Inf"}[1m])) by (room, le))`: "",
		`max by (job) (lamps) and on (job, room) group_left () doors unless up == bool 1e3`:      "",
		`lamp + doors`:                       "no metric is called lamp",
		`waits_seconds`:                      "no metric is called waits_seconds",
		`doors{room="hall"}`:                 "doors has no label room",
		`lamps{room="a"} / doors{colour=""}`: "doors has no label colour",
		`sum by (storey) (lamps)`:            "no metric of the expression has a label storey",
		`sum by (le) (lamps)`:                "no metric of the expression has a label le",
		`vector(1)`:                          "it uses no metric",
	} {
		if got := strings.Join(published.Faults(expression), "; "); got != want {
			t.Errorf("%s: %q, want %q", expression, got, want)
		}
	}
}
