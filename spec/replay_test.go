package spec

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestAReplayDeniesTheRequestsThatThePluginHasDenied(t *testing.T) {
	t.Parallel()
	config := deck(`{tiers: [{name: essentials, limits: [
		{name: hour, scope: tenant, limit: 4, window_size: 3600},
		{name: day, scope: tenant, limit: 5, window_size: 86400, algorithm: fixed_window}]}]}`)
	n := start(t, config)
	log, denied := "started_at,consumer.custom_id,route,method,path,status\n", 0
	noon := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	for i := range 24 {
		tenant := []string{"alice", "beth", "gus"}[i%3]
		status := n.get("/records", "apikey", tenant).Status
		if status == 429 {
			denied++
		}
		log += fmt.Sprintf("%s,%s,records,GET,/records,%d\n", noon.Add(time.Duration(i)*time.Second).Format(time.RFC3339),
			tenant, status)
	}
	dir := t.TempDir()
	for name, text := range map[string]string{"kong.yml": config, "access.csv": log} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	replay := exec.Command(filepath.Join(binaries, "ratelimit"), "replay", "--config", "kong.yml", "--log", "access.csv",
		"--tenant-from", "consumer.custom_id", "-o", "json", "--html", "report.html", "--fail-if-denied-above", "1%")
	replay.Dir = dir
	out, err := replay.Output()
	if replay.ProcessState.ExitCode() != 5 {
		t.Fatalf("%v, want exit code 5\n%s", err, out)
	}
	var report struct {
		Requests, Denied int
		Log              struct {
			Both       int `json:"denied_both"`
			OnlyLog    int `json:"denied_only_in_log"`
			OnlyReplay int `json:"denied_only_in_replay"`
		}
	}
	require.NoError(t, json.Unmarshal(out, &report))
	l := report.Log
	if denied == 0 || report.Requests != 24 || l.Both != denied || l.OnlyLog != 0 || l.OnlyReplay != 0 {
		t.Errorf("the plugin has denied %d requests; report %+v", denied, report)
	}
	if page, err := os.ReadFile(filepath.Join(dir, "report.html")); err != nil || len(page) < 1000 {
		t.Errorf("report of %d bytes, %v", len(page), err)
	}
}
