package spec

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/freeport"
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

// oneAnHour is a config that denies all requests of a tenant but the first of an hour.
const oneAnHour = `{tiers: [{name: enterprise, limits: [{name: hour, scope: tenant, limit: 1, window_size: 3600}]}]}`

// denialsTo is an option of start: the plugin server with its denials sent to a Kafka.
func denialsTo(broker string) func(*gateway.Options) {
	return func(o *gateway.Options) { o.Servers[0].Args = append(o.Servers[0].Args, "-kafka-brokers", broker) }
}

func TestDenialsFromBeforeKafkaWasThereReachItOnceAndInOnePartitionByTenant(t *testing.T) {
	t.Parallel()
	broker := freeport.Address(t)
	n := start(t, deck(oneAnHour), denialsTo(broker))
	n.want([]int{200, 429, 429, 429}, "/records", "apikey", "alice")

	_, port, err := net.SplitHostPort(broker)
	require.NoError(t, err)
	number, err := strconv.Atoi(port)
	require.NoError(t, err)
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.Ports(number), kfake.SeedTopics(4, "ratelimit.denials"))
	require.NoError(t, err)
	t.Cleanup(cluster.Close)
	n.want([]int{429, 429}, "/records", "apikey", "alice")

	consumer, err := kgo.NewClient(kgo.SeedBrokers(broker), kgo.ConsumeTopics("ratelimit.denials"))
	require.NoError(t, err)
	defer consumer.Close()
	ids, partitions, count := map[string]bool{}, map[int32]bool{}, 0
	for count < 5 {
		for _, r := range consumer.PollFetches(t.Context()).Records() {
			var e struct {
				ID, Source, Type, Subject string
				Data                      struct {
					Org, Policy string
					Count       int
				}
			}
			if err := json.Unmarshal(r.Value, &e); err != nil || string(r.Key) != "acme" || e.Subject != "acme" ||
				e.Data.Org != "acme" || e.Data.Policy != "hour" || ids[e.Source+" "+e.ID] {
				t.Errorf("%q: %s (%v), want a new event of acme", r.Key, r.Value, err)
			}
			ids[e.Source+" "+e.ID], partitions[r.Partition] = true, true
			count += e.Data.Count
		}
	}
	if count != 5 || len(partitions) != 1 {
		t.Errorf("%d events in %d partitions count %d denials, want 5 in one partition", len(ids), len(partitions), count)
	}
}

// deniedRequest has the fields of a denial that the spec reads.
type deniedRequest struct {
	At            time.Time `json:"at"`
	Org           string    `json:"org"`
	Tier          string    `json:"tier"`
	Policy        string    `json:"policy"`
	PolicyID      int64     `json:"policy_id"`
	PolicyVersion int64     `json:"policy_version"`
	PolicyFor     string    `json:"policy_for"`
	Remaining     *int64    `json:"remaining"`
	RetryAt       time.Time `json:"retry_at"`
	WouldAdmit    string    `json:"would_admit"`
}

func TestTheRequestIDOfADenialLeadsToTheSameAnswerAtEveryDoor(t *testing.T) {
	t.Parallel()
	p := planeOf(t, `tiers: [{name: enterprise, limits: [
		{name: year, scope: tenant, limit: 2, window_size: 31536000, algorithm: fixed_window}]}], default_tier: enterprise`)
	p.operate("policy", "put", "hour", "--tenant", "beta", "--limit", "1", "--window", "3600", "--reason", "a spec")
	api, n := p.serve("--keeper-database", p.dsn), p.node("node-1", p.dsn)
	ofAcme := api.as(p.token("acme-ops", "tenant:acme"))
	// The first one is denied by a row, so the node has the rows when the other one is denied by its config.
	for _, by := range []struct{ key, org, policy, policyFor string }{
		{"beth", "beta", "hour", "tenant"}, {"alice", "acme", "year", "tier enterprise"},
	} {
		var denied answer
		await.That(t, "a request to be denied", func() bool {
			got, err := n.send("GET", "/records", "apikey", by.key)
			require.NoError(t, err)
			denied = answer{got.Status, got.Header, ""}
			return got.Status == http.StatusTooManyRequests && strings.Contains(got.Body, `"`+by.policy+`"`)
		})
		id := denied.Header.Get("X-Kong-Request-Id")
		path := "/v1/ratelimit/denials/" + id
		await.That(t, path+" to answer", func() bool { return api.status(path) == http.StatusOK })
		var found struct {
			Denials []deniedRequest `json:"denials"`
		}
		api.want(http.StatusOK, &found, http.MethodGet, path, "")
		d := found.Denials[0]
		isRow := by.policyFor == "tenant"
		if len(found.Denials) != 1 || d.Org != by.org || d.Policy != by.policy || d.PolicyFor != by.policyFor ||
			d.Tier != "enterprise" || (d.PolicyID > 0) != isRow || d.PolicyVersion == 0 {
			t.Errorf("the API says of %s: %+v", id, found.Denials)
		}
		if left := denied.Header.Get("X-RateLimit-Remaining"); d.Remaining == nil || fmt.Sprint(*d.Remaining) != left {
			t.Errorf("%v are left, and the response says %q", d.Remaining, left)
		}
		wait, err := strconv.Atoi(denied.Header.Get("Retry-After"))
		if gap := d.RetryAt.Sub(d.At) - time.Duration(wait)*time.Second; err != nil || gap < 0 || gap >= time.Second {
			t.Errorf("a retry at %v, %v after the denial, and the response says %d s (%v)", d.RetryAt, d.At, wait, err)
		}
		for _, command := range []string{"explain", "denials"} {
			text := strings.Join(strings.Fields(p.operate(command, "--request-id", id)), " ")
			if !strings.Contains(text, "org "+by.org) || !strings.Contains(text, d.WouldAdmit) {
				t.Errorf("ratelimit %s says\n%s\nwant %q", command, text, d.WouldAdmit)
			}
		}
		want := http.StatusNotFound
		if by.org == "acme" {
			want = http.StatusOK
		}
		ofAcme.want(want, nil, http.MethodGet, path, "")
	}
}
