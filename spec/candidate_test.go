package spec

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/freeport"
)

// putYear puts a policy that allows a number of requests a year to each tenant of the tier enterprise.
func (p *plane) putYear(limit int, command ...string) {
	p.t.Helper()
	p.operate(append(command, "year", "--tier", "enterprise", "--limit", fmt.Sprint(limit), "--window", "31536000",
		"--algorithm", "fixed_window", "--accuracy", "exact", "--reason", "a spec", "--wait=30s")...)
}

// awaitYear awaits that a consumer's requests have a status, by a limit a year.
func (n *node) awaitYear(key string, status, limit int) {
	n.t.Helper()
	await.That(n.t, fmt.Sprintf("%s gets %d by a limit of %d", key, status, limit), func() bool {
		a := n.get("/records", "apikey", key)
		return a.Status == status && strings.Contains(a.Header.Get("RateLimit-Policy"), fmt.Sprintf(`"year";q=%d`, limit))
	})
}

func TestACandidateIsComparedThenEnforcedForATenantThenForAllAndRolledBack(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	n := p.node("one", p.dsn)
	// it fails while no node is live
	await.That(t, "the node reports", func() bool {
		return p.command("fleet").Run() == nil
	})
	p.putYear(1000, "policy", "put")
	p.operate("tenant", "set", "gamma", "--tier", "enterprise", "--reason", "a spec")
	n.awaitYear("alice", http.StatusOK, 1000)
	n.awaitYear("gus", http.StatusOK, 1000)

	p.operate("candidate", "create", "july", "--reason", "a spec")
	p.putYear(5, "candidate", "put", "july")
	var report struct {
		Total struct {
			Requests      int `json:"requests"`
			CandidateOnly int `json:"candidate_only"`
			ActiveOnly    int `json:"active_only"`
		} `json:"total"`
	}
	await.That(t, "the report has requests that only the candidate denies", func() bool {
		n.awaitYear("alice", http.StatusOK, 1000)
		require.NoError(t, json.Unmarshal([]byte(p.operate("candidate", "report", "-o", "json")), &report))
		return report.Total.CandidateOnly > 0
	})
	if got := report.Total; got.Requests-got.CandidateOnly > 5 || got.ActiveOnly != 0 {
		t.Errorf("%+v: the candidate admits five requests", got)
	}

	p.operate("candidate", "assign", "july", "--tenant", "acme", "--reason", "a spec", "--wait=30s")
	n.awaitYear("alice", http.StatusTooManyRequests, 5) // it has spent more of the same bucket
	n.awaitYear("gus", http.StatusOK, 1000)
	p.operate("candidate", "assign", "july", "--remove", "acme", "--reason", "a spec", "--wait=30s")
	n.awaitYear("alice", http.StatusOK, 1000)

	p.operate("candidate", "promote", "july", "--reason", "a spec", "--wait=30s")
	n.awaitYear("alice", http.StatusTooManyRequests, 5)
	if out, err := p.command("candidate", "promote", "july", "--reason", "again").CombinedOutput(); err == nil ||
		!strings.Contains(string(out), "it was promoted at ") {
		t.Errorf("promoted twice: %s (%v)", out, err)
	}
	p.operate("candidate", "rollback", "july", "--reason", "a spec", "--wait=30s")
	n.awaitYear("alice", http.StatusOK, 1000)
	n.awaitYear("gus", http.StatusOK, 1000)
}

// A promotion and a rollback are one version each: a node fetches it once, however many policies it changes.
// How long that takes is shown and not judged, because it depends on the machine.
func TestAPromotionAndARollbackReachAllNodesInOneFetchEach(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	metrics, nodes := map[string]string{}, map[string]*node{}
	for _, name := range []string{"one", "two", "three"} {
		metrics[name] = freeport.Address(t)
		nodes[name] = start(t, deck(p.config), serverWith("-database", p.dsn, "-snapshot-dir", "off",
			"-metrics-listen", metrics[name], "-node-name", name))
	}
	await.That(t, "all nodes report", func() bool {
		out, err := p.command("fleet").Output() // it fails while no node is live
		return err == nil && strings.Contains(string(out), "3 of 3 live nodes")
	})
	fetches := func(name string) (changes, all float64) {
		_, text := read(metrics[name], "/metrics")
		changes, counted := number(text, "rate_limiter_snapshot_catch_ups_total")
		all, both := number(text, "rate_limiter_snapshot_loads_total")
		if !counted || !both {
			t.Fatalf("node %s does not count what it fetches:\n%s", name, text)
		}
		return changes, all
	}
	p.operate("tenant", "set", "gamma", "--tier", "enterprise", "--reason", "a spec")
	p.putYear(1000, "policy", "put")
	p.operate("candidate", "create", "july", "--reason", "a spec")
	for i := range 5 {
		p.operate("candidate", "put", "july", fmt.Sprint("more-", i), "--tier", "enterprise", "--limit", "1000000",
			"--window", "1h", "--reason", "a spec")
	}
	p.putYear(900, "candidate", "put", "july")
	for _, step := range []struct {
		command string
		limit   int
	}{{"promote", 900}, {"rollback", 1000}} {
		changes, all := map[string]float64{}, map[string]float64{}
		for name := range nodes {
			changes[name], all[name] = fetches(name)
		}
		p.operate("candidate", step.command, "july", "--reason", "a spec")
		committed := time.Now()
		for name, n := range nodes {
			n.awaitYear("gus", http.StatusOK, step.limit)
			t.Logf("%s: node %s enforces it within %v of the commit", step.command, name, time.Since(committed))
		}
		for name := range nodes {
			var got, reloads float64
			await.That(t, "node "+name+" counts what it has fetched", func() bool { // it enforces it before
				changesNow, allNow := fetches(name)
				got, reloads = changesNow-changes[name], allNow-all[name]
				return got+reloads > 0
			})
			if got > 1 {
				t.Errorf("%s: node %s fetches changes %v times and all rows %v times, want one fetch", step.command, name, got,
					reloads)
			}
		}
	}
}
