package spec

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/kong/gateway"
)

func TestAPluginWithAHundredTiersAndNoRedisAnswersSoonAfterItsStart(t *testing.T) {
	config := hundredTiers(`"strategy":"redis","redis":{"host":"127.0.0.1","port":1}`) // no server listens there
	// A busy machine delays some starts. What the program waits for delays each.
	for begun, soon := time.Now(), 0; soon < 3; {
		took := firstAnswer(t, config)
		t.Logf("from the start of the process to the first answer: %v", took)
		if took <= time.Second {
			soon++
		}
		if time.Since(begun) > longest {
			t.Fatalf("%d starts were followed by an answer within a second, want 3", soon)
		}
	}
}

// firstAnswer starts a plugin server with a config, and returns the time until it has answered a request.
func firstAnswer(t *testing.T, config string) time.Duration {
	t.Helper()
	prefix := shortDir(t)
	begun := time.Now()
	p := startPlugin(t, prefix, "-metrics-listen", "off")
	socket := filepath.Join(prefix, "tenant-rate-limiting.socket")
	id := startInstance(t, socket, config)
	c, err := gateway.Dial(socket)
	require.NoError(t, err)
	outcome, err := c.HandleEvent(id, "access",
		gateway.Request{Consumer: &gateway.Consumer{ID: "c", Username: "acme"}, RemoteAddr: "127.0.0.1:1"})
	if err != nil || outcome.Exit != nil {
		t.Errorf("the first request: %+v, %v", outcome, err)
	}
	took := time.Since(begun)
	c.Close()
	p.terminate()
	return took
}

// hundredTiers is a large config as Kong sends it, with other settings beside.
func hundredTiers(others string) string {
	var tiers []string
	for i := range 100 {
		tiers = append(tiers,
			fmt.Sprintf(`{"name":"t%d",
				"limits":[{"name":"day","scope":"tenant","limit":%d,"window_size":86400,"algorithm":"fixed_window"},
			{"name":"burst","scope":"tenant","limit":50,"window_size":1},
				{"name":"write","scope":"user","endpoint":"POST /records/{id}","limit":10,"window_size":1}]}`, i, 1000+i))
	}
	return `{"__seq__":4711,"__plugin_id":"p",` + others + `,"tiers":[` + strings.Join(tiers, ",") + `]}`
}
