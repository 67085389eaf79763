package portal

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
)

// fleet is which version each node enforces.
type fleet struct {
	answers.Fleet
	Degraded int // nodes that are
	More     int // nodes that are not shown
}

// mark is a state in words, with the class of its badge.
type mark struct {
	Class, Text string
	Since       time.Time // zero: the node does not report it
}

// degraded begins the text of a node that does not enforce all policies by its Redis and the newest rows.
const degraded = "degraded: "

func (m mark) isDegraded() bool { return strings.HasPrefix(m.Text, degraded) }

const maxNodes = 500

func readFleet(v *visit) (*fleet, error) {
	f := &fleet{}
	if err := v.get("/v1/ratelimit/fleet", nil, f); err != nil {
		return nil, err
	}
	f.countDegraded()
	if len(f.Nodes) > maxNodes {
		f.Nodes, f.More = f.Nodes[:maxNodes], len(f.Nodes)-maxNodes
	}
	return f, nil
}

func (f *fleet) countDegraded() {
	for _, n := range f.Nodes {
		if slices.ContainsFunc(f.Marks(n), mark.isDegraded) {
			f.Degraded++
		}
	}
}

// Marks returns the states of a node, the worst first. A node without one is as it should be.
func (f *fleet) Marks(n answers.Node) (marks []mark) {
	if !n.Live {
		marks = append(marks, mark{Class: "bad", Text: "silent"})
	}
	if n.Version < f.Version {
		marks = append(marks, mark{Class: "warn", Text: fmt.Sprintf("behind by %s", plural(f.Version-n.Version, "version"))})
	}
	for _, r := range n.Away() {
		text := degraded + "Redis " + r.Name + " does not answer"
		marks = append(marks, mark{Class: "bad", Text: text, Since: *r.AwaySince})
	}
	if n.Source != "postgres" {
		marks = append(marks, mark{Class: "warn", Text: degraded + "policies from " + n.Source})
	}
	var faulty []json.RawMessage
	_ = json.Unmarshal(n.Faults, &faulty) // none in another shape
	if len(faulty) > 0 {
		marks = append(marks, mark{Class: "warn", Text: degraded + plural(int64(len(faulty)), "faulty row")})
	}
	if len(marks) == 0 {
		marks = append(marks, mark{Class: "ok", Text: "live"})
	}
	return marks
}

// waitForNodes is how long a write waits for the nodes, so that its notice can say that they enforce it.
const waitForNodes = "3s"

// noticeOf returns what a write did, and which nodes enforce it.
func noticeOf(w *answers.Written, done string) notice {
	n := notice{Text: fmt.Sprintf("%s (version %s).", done, humanize.Comma(w.Version)), Version: w.Version}
	for _, warning := range w.Warnings.Warnings {
		n.Text += " Check: " + warning + "."
	}
	if w.Enforcement != nil {
		n.Reach = reachWords(&w.Enforcement.Reach)
	}
	return n
}

// reachWords returns which nodes enforce a version, as a sentence.
func reachWords(e *answers.Reach) string {
	switch {
	case e.Enforced:
		return fmt.Sprintf("All live nodes enforce it: %s.", plural(int64(e.Live), "node"))
	case e.Live == 0:
		return "No node is live, so none enforces it yet."
	}
	enforcing := humanize.Comma(int64(e.Live - len(e.Behind)))
	text := fmt.Sprintf("%s of %s live nodes enforce it", enforcing, humanize.Comma(int64(e.Live)))
	return text + nodesText("; behind: ", e.Behind) + nodesText("; silent: ", e.Silent) + "."
}

// readReach returns which nodes enforce the version of a write, for the live part of its notice.
func readReach(v *visit) (string, error) {
	version, err := strconv.ParseInt(v.r.URL.Query().Get("version"), 10, 64)
	if err != nil {
		return "", &problem{Status: http.StatusBadRequest, Detail: "The version is not a number."}
	}
	var f answers.Fleet
	if err := v.get("/v1/ratelimit/fleet", nil, &f); err != nil {
		return "", err
	}
	return reachWords(new(f.Fleet.Reach(version))), nil
}

// nodesText returns the names of the first nodes after a prefix, or "" without any.
func nodesText(prefix string, nodes []answers.NodeVersion) string {
	const most = 3
	var names []string
	for _, n := range nodes[:min(len(nodes), most)] {
		names = append(names, n.Node)
	}
	if more := len(nodes) - most; more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	if names == nil {
		return ""
	}
	return prefix + strings.Join(names, ", ")
}
