package spec

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
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
		if err := json.Unmarshal([]byte(p.operate("candidate", "report", "-o", "json")), &report); err != nil {
			t.Fatal(err)
		}
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

// clockwise matches what in an answer depends on the clock or on chance.
var clockwise = regexp.MustCompile(
	`t=\d+|(?m)^(Date|Retry-After|X-Kong-[A-Za-z-]+): .*$|retry_after_seconds":\d+|again in \d+ s`)

// sequence returns the answers to requests of a consumer, without what depends on the clock.
func (n *node) sequence(key string, requests int) string {
	var text strings.Builder
	for range requests {
		a := n.get("/records", "apikey", key)
		fmt.Fprintln(&text, a.Status)
		for _, name := range slices.Sorted(maps.Keys(a.Header)) {
			fmt.Fprintf(&text, "%s: %s\n", name, strings.Join(a.Header[name], ", "))
		}
		if a.Status != http.StatusOK { // the upstream echoes ids
			fmt.Fprintln(&text, a.Body)
		}
	}
	return clockwise.ReplaceAllString(text.String(), "…")
}

func TestAnswersToTenantsThatAreNotAssignedAreThoseWithoutACandidate(t *testing.T) {
	t.Parallel()
	answers := map[bool]string{}
	for _, open := range []bool{false, true} {
		p := newPlane(t)
		n := p.node("one", p.dsn)
		other := p.node("two", p.dsn)
		await.That(t, "both nodes report", func() bool {
			out, err := p.command("fleet").Output() // it fails while no node is live
			return err == nil && strings.Contains(string(out), "2 of 2 live nodes")
		})
		p.operate("tenant", "set", "gamma", "--tier", "enterprise", "--reason", "a spec", "--wait=30s")
		p.putYear(4, "policy", "put")
		if open {
			p.operate("candidate", "create", "july", "--reason", "a spec")
			p.putYear(1, "candidate", "put", "july")
			p.operate("candidate", "assign", "july", "--tenant", "acme", "--reason", "a spec", "--wait=30s")
			n.want([]int{200, 429, 429}, "/records", "apikey", "alice") // the candidate decides
		}
		answers[open] = n.sequence("gus", 6)
		if open {
			for _, step := range []string{"promote", "rollback"} {
				t.Log(p.operate("candidate", step, "july", "--reason", "a spec", "--wait=30s"))
				limit := map[string]int{"promote": 1, "rollback": 4}[step]
				n.awaitYear("gus", http.StatusTooManyRequests, limit)
				other.awaitYear("gus", http.StatusTooManyRequests, limit)
			}
		}
	}
	if answers[true] != answers[false] {
		t.Errorf("with a candidate the answers are\n%s\nand without\n%s", answers[true], answers[false])
	}
	if !strings.Contains(answers[true], "200\n") || !strings.Contains(answers[true], "429\n") {
		t.Errorf("the answers are not those of a limit of 4:\n%s", answers[true])
	}
}
