package architecture

import (
	"os/exec"
	"strings"
	"testing"
)

func TestTheDemosPluginLeavesOutTheClientOfKafkaThatReleasesHave(t *testing.T) {
	t.Parallel()
	for tags, want := range map[string]bool{"": true, "nokafka": false} {
		list := exec.Command("go", "list", "-deps", "-tags", tags, "./plugin/cmd/tenant-rate-limiting")
		list.Dir = root
		out, err := list.Output()
		if err != nil {
			t.Fatalf("go list -tags %q: %v", tags, err)
		}
		if got := strings.Contains(string(out), "github.com/twmb/franz-go"); got != want {
			t.Errorf("with tags %q the plugin has franz-go: %v, want %v", tags, got, want)
		}
	}
}

func TestThePluginServerHasNoGRPC(t *testing.T) {
	t.Parallel()
	list := exec.Command("go", "list", "-deps", "./plugin/cmd/tenant-rate-limiting")
	list.Dir = root
	out, err := list.Output()
	if err != nil || strings.Contains(string(out), "google.golang.org/grpc") {
		t.Errorf("only ratelimit serve speaks Envoy's protocol: %v\n%s", err, out)
	}
}
