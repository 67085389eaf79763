package main

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/kong/gateway"
)

// printed returns the config that -print-config prints.
func printed(t *testing.T, args ...string) *gateway.Config {
	t.Helper()
	var stdout, stderr bytes.Buffer
	args = append(args, "-print-config", "-upstream", "http://"+gateway.AnswerHost)
	require.Zero(t, run(t.Context(), args, &stdout, &stderr), &stderr)
	config, err := gateway.ParseConfig(stdout.Bytes())
	require.NoError(t, err)
	return config
}

func TestEveryRouteOfTheStandInIsMeasured(t *testing.T) {
	dir := t.TempDir() + "/"
	build := exec.Command("go", "build", "-ldflags", "-s -w", "-o", dir,
		"../../../internal/bench/bench-floor", "../../../plugin/cmd/tenant-rate-limiting")
	output, err := build.CombinedOutput()
	require.NoError(t, err, string(output))
	rows := []string{"-redis", redistest.Single(t).Socket, "-skip", "kong"}
	g, err := gateway.New(gateway.Options{Config: printed(t, rows...), Workers: 1, Servers: []gateway.PluginServer{
		{Binary: filepath.Join(dir, "tenant-rate-limiting")}, {Binary: filepath.Join(dir, "bench-floor")},
	}})
	require.NoError(t, err)
	require.NoError(t, g.Start(t.Context()))
	t.Cleanup(func() { require.NoError(t, g.Close()) })
	var stdout, stderr bytes.Buffer
	args := append(rows, "-proxy", g.URL(), "-process", "kong=bench-kong.test", "-connections", "4",
		"-turn", "200ms", "-rounds", "1")
	require.Zero(t, run(t.Context(), args, &stdout, &stderr), &stderr)
	table, kongCPU := stdout.String(), 0 // the rows with CPU time of Kong: the system counts it in steps of 10 ms
	for _, title := range []string{
		"no limiter", "no-op Go plugin (floor)",
		"ours, 4 limits, in memory", "ours, 4 limits, leased", "ours, 4 limits, exact",
		"denial: bare exit (floor)", "denial: ours, in memory", "denial: ours, in memory, without its request id",
		"denial: ours, remembered",
	} {
		row := regexp.MustCompile(`(?m)^\| ` + regexp.QuoteMeta(title) + strings.Repeat(` +\| ([\d.]+)`, 5) + ` +\|`)
		cells := row.FindStringSubmatch(table)
		if cells == nil || cells[1] == "0" {
			t.Errorf("no figures of %q in\n%s", title, table)
		} else if cells[4] != "0.0" {
			kongCPU++
		}
	}
	if kongCPU == 0 {
		t.Errorf("no CPU time of Kong in\n%s", table)
	}
}

func TestRowsWithoutARedisOrWithANameToSkipAreLeftOut(t *testing.T) {
	for args, want := range map[string]int{
		"-redis 127.0.0.1:6379": len(allRoutes("")), "-redis /tmp/s": len(allRoutes("")) - 2, "": 8,
		"-skip kong": 6, "-only ^denial -skip floor|kong": 2,
	} {
		if got := printed(t, strings.Fields(args)...); len(got.Routes) != want || len(got.Consumers) != 1 {
			t.Errorf("%s: %d routes and %d consumers, want %d and 1", args, len(got.Routes), len(got.Consumers), want)
		}
	}
}

func TestARouteThatIsNotThereFailsTheRun(t *testing.T) {
	kong := httptest.NewServer(http.NotFoundHandler())
	defer kong.Close()
	var stdout, stderr bytes.Buffer
	status := run(t.Context(), []string{"-proxy", kong.URL, "-ready-within", "1s"}, &stdout, &stderr)
	const want = "none: the route is not ready: status 404, want 200"
	if status != 1 || !strings.Contains(stderr.String(), want) {
		t.Errorf("status %d: %s", status, &stderr)
	}
}

func TestAProcessThatEndsOrStartsMeanwhileIsNotCounted(t *testing.T) {
	if got := computed(map[int]float64{1: 7, 2: 90}, map[int]float64{1: 9.5, 3: 40}); got != 2.5 {
		t.Errorf("%v s, want 2.5", got)
	}
}

func TestATurnHasAtLeastOneRequestOfEachConnection(t *testing.T) {
	kong := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer kong.Close()
	c := client{url: kong.URL, status: http.StatusOK}
	took, err := c.run(t.Context(), 2, time.Nanosecond)
	if err != nil || len(took) != 2 {
		t.Errorf("%d requests, %v", len(took), err)
	}
}

func TestWrongUsageNamesTheFlag(t *testing.T) {
	for args, want := range map[string]string{
		"-rounds 0": "-rounds", "-turn 0s": "-turn", "rest": "no arguments", "-print-config": "-upstream",
		"-process redis": "-process", "-only (": "-only",
	} {
		var stdout, stderr bytes.Buffer
		status := run(t.Context(), strings.Fields(args), &stdout, &stderr)
		if status != 2 || !strings.Contains(stderr.String(), want) {
			t.Errorf("%s: status %d, want 2 and %q: %s", args, status, want, &stderr)
		}
	}
}
