package spec

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	unitFile   = "kong/systemd/tenant-rate-limiting.service"
	socketUnit = "kong/systemd/tenant-rate-limiting.socket"
	serverUnit = "kong/systemd/ratelimit.service"
)

// execStart returns the command line of the unit.
func execStart(t *testing.T) []string {
	t.Helper()
	found := regexp.MustCompile(`(?m)^ExecStart=(.+)$`).FindStringSubmatch(file(t, unitFile))
	if found == nil {
		t.Fatal("the unit has no ExecStart")
	}
	return strings.Fields(found[1])
}

func TestTheSystemdUnitUsesOnlyExistingFlags(t *testing.T) {
	t.Parallel()
	command := execStart(t)
	help, err := exec.Command(plugin(), "-help").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, help)
	}
	flags := 0
	for _, word := range command[1:] {
		if strings.HasPrefix(word, "-") {
			flags++
			if !strings.Contains(string(help), "\n  "+word+" ") {
				t.Errorf("the program has no flag %s", word)
			}
		}
	}
	if flags == 0 || filepath.Base(command[0]) != "tenant-rate-limiting" || filepath.Dir(command[0]) == "/usr/local/bin" {
		t.Errorf("ExecStart=%v: want flags, and the plugin outside of /usr/local/bin, where Kong would start it", command)
	}
}

func TestTheSystemdUnitListensWhereItsKongConfLooks(t *testing.T) {
	t.Parallel()
	unit, command := file(t, unitFile), execStart(t)
	socket := regexp.MustCompile(`(?m)^#\s+pluginserver_tenant_rate_limiting_socket = (\S+)$`).FindStringSubmatch(unit)
	settling := regexp.MustCompile(`(?m)^#\s+pluginserver_tenant_rate_settling_socket = (\S+)$`).FindStringSubmatch(unit)
	if socket == nil || settling == nil {
		t.Fatal("the unit lacks the settings of the sockets for Kong")
	}
	streams := "\nListenStream=" + socket[1] + "\nListenStream=" + settling[1] + "\n"
	if !strings.Contains(file(t, socketUnit), streams) {
		t.Errorf("the socket unit lacks %q", streams)
	}
	joined := strings.Join(command, " ")
	if !strings.Contains(joined, "-kong-prefix "+filepath.Dir(socket[1])+" ") ||
		!strings.Contains(unit, "\nRuntimeDirectory="+filepath.Base(filepath.Dir(socket[1]))+"\n") {
		t.Errorf("Kong looks at %s, the process runs as %s", socket[1], joined)
	}
	if regexp.MustCompile(`(?m)^#\s+pluginserver_\w+_start_cmd`).MatchString(unit) {
		t.Error("its kong.conf has a start_cmd, with which Kong manages the process")
	}
}

func TestTheSystemdUnitIsValid(t *testing.T) {
	t.Parallel()
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Log("systemd-analyze is not installed: only the flags and paths of the unit are checked")
		return
	}
	text := strings.Replace(file(t, unitFile), "ExecStart="+execStart(t)[0], "ExecStart="+plugin(), 1)
	path := filepath.Join(t.TempDir(), "tenant-rate-limiting.service")
	sockets := strings.Replace(path, ".service", ".socket", 1)
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	require.NoError(t, os.WriteFile(sockets, []byte(file(t, socketUnit)), 0o600))
	server := filepath.Join(filepath.Dir(path), "ratelimit.service")
	text = strings.Replace(file(t, serverUnit), "ExecStart=/usr/bin", "ExecStart="+binaries, 1)
	require.NoError(t, os.WriteFile(server, []byte(text), 0o600))
	out, err := exec.Command(analyze, "verify", "--man=no", path, sockets, server).CombinedOutput()
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, "ratelimit") || strings.Contains(line, "tenant-rate-limiting") {
			t.Errorf("systemd-analyze verify: %s", line)
		}
	}
	if err != nil {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
}
