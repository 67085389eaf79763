package portal

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// fleet is which version each node enforces, as the API returns it.
type fleet struct {
	Version  int64       `json:"version"`
	At       time.Time   `json:"at"`
	Nodes    []fleetNode `json:"nodes"`
	Enforced bool        `json:"enforced"`
	Live     int         `json:"live_nodes"`
	Behind   []nodeState `json:"behind"`
	Silent   []nodeState `json:"silent"`

	Degraded int `json:"-"` // nodes that are
	More     int `json:"-"` // nodes that are not shown
}

// nodeState is a node with the version that it enforces.
type nodeState struct {
	Node    string `json:"node"`
	Version int64  `json:"version"`
}

// fleetNode is the last report of a node.
type fleetNode struct {
	nodeState
	EnforcedAt time.Time       `json:"enforced_at"`
	ReportedAt time.Time       `json:"reported_at"`
	Live       bool            `json:"live"`
	Source     string          `json:"source"`
	Faults     json.RawMessage `json:"faults"`
	Leases     int64           `json:"leases"`
	Redis      []struct {
		Name      string    `json:"name"`
		AwaySince time.Time `json:"away_since"` // zero: it answers
	} `json:"redis"`

	Marks []mark `json:"-"`
}

// mark is a state in words, with the class of its badge.
type mark struct {
	Class, Text string
	Since       time.Time // zero: the node does not report it
}

// degraded begins the text of a node that does not enforce all policies by its Redis and the newest rows.
const degraded = "degraded: "

func (m mark) isDegraded() bool { return strings.HasPrefix(m.Text, degraded) }

// maxNodes bounds the nodes on a page.
const maxNodes = 500

// serveFleet shows the nodes.
func serveFleet(v *visit) error {
	f, err := readFleet(v)
	if err != nil {
		return err
	}
	return v.render("operator_fleet", "Fleet", f)
}

func readFleet(v *visit) (*fleet, error) {
	f := &fleet{}
	if err := v.get("/v1/ratelimit/fleet", nil, f); err != nil {
		return nil, err
	}
	f.setMarks()
	if len(f.Nodes) > maxNodes {
		f.Nodes, f.More = f.Nodes[:maxNodes], len(f.Nodes)-maxNodes
	}
	return f, nil
}

// setMarks sets the states of the nodes, and counts those that are degraded.
func (f *fleet) setMarks() {
	for i := range f.Nodes {
		n := &f.Nodes[i]
		if n.Marks = n.marks(f.Version); slices.ContainsFunc(n.Marks, mark.isDegraded) {
			f.Degraded++
		}
	}
}

// marks returns the states of a node, the worst first. A node without one is as it should be.
func (n *fleetNode) marks(version int64) []mark {
	var marks []mark
	if !n.Live {
		marks = append(marks, mark{Class: "bad", Text: "silent"})
	}
	if n.Version < version {
		marks = append(marks, mark{Class: "warn", Text: fmt.Sprintf("behind by %s", plural(version-n.Version, "version"))})
	}
	for _, r := range n.Redis {
		if !r.AwaySince.IsZero() {
			text := degraded + "Redis " + r.Name + " does not answer"
			marks = append(marks, mark{Class: "bad", Text: text, Since: r.AwaySince})
		}
	}
	if n.Source != "postgres" {
		marks = append(marks, mark{Class: "warn", Text: degraded + "policies from " + n.Source})
	}
	if faults := n.faultCount(); faults > 0 {
		marks = append(marks, mark{Class: "warn", Text: degraded + plural(int64(faults), "faulty row")})
	}
	if len(marks) == 0 {
		marks = append(marks, mark{Class: "ok", Text: "live"})
	}
	return marks
}

// faultCount returns how many rows the node could not compile.
func (n *fleetNode) faultCount() int {
	var faults []json.RawMessage
	if json.Unmarshal(n.Faults, &faults) != nil {
		return 0 // of another shape
	}
	return len(faults)
}

// enforcement reports which nodes enforce a version.
type enforcement struct {
	Enforced bool        `json:"enforced"`
	Live     int         `json:"live_nodes"`
	Behind   []nodeState `json:"behind"`
	Silent   []nodeState `json:"silent"`
}

// written is the answer to a write.
type written struct {
	Version     int64        `json:"version"`
	Enforcement *enforcement `json:"enforcement"`
	Warnings    []string     `json:"warnings"`
}

// waitForNodes is how long a write waits for the nodes, so that its notice can say that they enforce it.
const waitForNodes = "3s"

// notice returns what a write did, and which nodes enforce it.
func (w *written) notice(done string) notice {
	n := notice{Text: fmt.Sprintf("%s (version %s).", done, thousands(w.Version)), Version: w.Version}
	for _, warning := range w.Warnings {
		n.Text += " Check: " + warning + "."
	}
	if w.Enforcement != nil {
		n.Reach = w.Enforcement.words()
	}
	return n
}

// words returns which nodes enforce a version, as a sentence.
func (e *enforcement) words() string {
	switch {
	case e.Enforced:
		return fmt.Sprintf("All live nodes enforce it: %s.", plural(int64(e.Live), "node"))
	case e.Live == 0:
		return "No node is live, so none enforces it yet."
	}
	text := fmt.Sprintf("%s of %s live nodes enforce it", thousands(int64(e.Live-len(e.Behind))), thousands(int64(e.Live)))
	return text + nodesText("; behind: ", e.Behind) + nodesText("; silent: ", e.Silent) + "."
}

// readReach returns which nodes enforce the version of a write, for the live part of its notice.
func readReach(v *visit) (string, error) {
	version, err := strconv.ParseInt(v.r.URL.Query().Get("version"), 10, 64)
	if err != nil {
		return "", &problem{Status: http.StatusBadRequest, Detail: "The version is not a number."}
	}
	f := &fleet{}
	if err := v.get("/v1/ratelimit/fleet", nil, f); err != nil {
		return "", err
	}
	e := f.enforcement(version)
	return e.words(), nil
}

// enforcement reports which nodes enforce a version.
func (f *fleet) enforcement(version int64) enforcement {
	e := enforcement{Live: f.Live, Silent: f.Silent}
	for _, n := range f.Nodes {
		if n.Live && n.Version < version {
			e.Behind = append(e.Behind, n.nodeState)
		}
	}
	e.Enforced = e.Live > 0 && len(e.Behind) == 0 && len(e.Silent) == 0
	return e
}

// nodesText returns the names of the first nodes after a prefix, or "" without any.
func nodesText(prefix string, nodes []nodeState) string {
	const most = 3
	var names []string
	for i, n := range nodes {
		if i == most {
			names = append(names, fmt.Sprintf("%d more", len(nodes)-most))
			break
		}
		names = append(names, n.Node)
	}
	if names == nil {
		return ""
	}
	return prefix + strings.Join(names, ", ")
}
