package spec

import (
	"bufio"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/kong/gateway"
)

// recorded is an option of start: the plugin server with its denials recorded in a file.
func recorded(file string) func(*gateway.Options) {
	return func(o *gateway.Options) { o.Servers[0].Args = append(o.Servers[0].Args, "-denial-log", file) }
}

// denialEvent has the fields of a line that the specs read.
type denialEvent struct {
	Org    string `json:"org"`
	User   string `json:"user"`
	IP     string `json:"ip"`
	Policy string `json:"policy"`
	Count  int    `json:"count"`
	Mode   string `json:"mode"`

	Endpoint  string   `json:"endpoint"`
	RequestID string   `json:"request_id"`
	More      []string `json:"more_request_ids"`
}

// denialEvents returns the lines of a file.
func denialEvents(t *testing.T, file string) []denialEvent {
	t.Helper()
	f, err := os.Open(file)
	require.NoError(t, err)
	defer f.Close()
	var events []denialEvent
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var event denialEvent
		if err := json.Unmarshal(lines.Bytes(), &event); err != nil {
			t.Fatalf("%v: %s", err, lines.Bytes())
		}
		events = append(events, event)
	}
	return events
}

func TestTheDenialRecordHasRequestIDsAndRoutesOfAGlobalConfig(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "denials")
	n := start(t, deckOf(`
  - {name: records, paths: [/records], plugins: [{name: key-auth}]}`)+`
plugins: [{name: tenant-rate-limiting, config: {denial_ip: true,
    tiers: [{name: enterprise, limits: [{name: hour, scope: tenant, limit: 1, window_size: 3600}]}]}}]
`, recorded(file))
	n.want([]int{200}, "/records", "apikey", "alice")
	denied := map[string]bool{}
	for range 3 {
		a, err := n.send("GET", "/records", "apikey", "alice")
		if err != nil || a.Status != 429 || a.Header.Get("X-Kong-Request-Id") == "" {
			t.Fatalf("%d, %v, %v", a.Status, err, a.Header)
		}
		denied[a.Header.Get("X-Kong-Request-Id")] = true
	}
	require.NoError(t, n.Close())
	for _, e := range denialEvents(t, file) {
		if e.Endpoint != "records" || !strings.HasPrefix(e.IP, "hmac:") {
			t.Errorf("endpoint %q and address %q, want the route and a hash", e.Endpoint, e.IP)
		}
		for _, id := range append(e.More, e.RequestID) {
			if !denied[id] {
				t.Errorf("request %q was not denied", id)
			}
			delete(denied, id)
		}
	}
	if len(denied) != 0 {
		t.Errorf("requests %v are not in the record", denied)
	}
}
