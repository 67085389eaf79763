package cli

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

const fleetPath = "/v1/ratelimit/fleet"

// fleetQuery returns the query of the fleet that counts nodes as live by --live-within.
func (c *call) fleetQuery() url.Values {
	return url.Values{"live_within": {c.change.within.String()}}
}

var fleetCommand = &command{
	words: "fleet", brief: "show which version each node enforces, and how long the last change took to roll out",
	about: `A node that shuts down cleanly leaves the list. A node that has not reported lately is silent: it may be
dead, or it may still admit requests by old policies, so it counts as not enforcing the version. A silent node is
removed when a new process starts with the same -snapshot-dir, by ratelimit fleet forget, or by ratelimit tidy after a
day. Nodes that follow a standby cannot report and are not listed.

REDIS lists the Redis of a node, with the time since when one does not answer, by its last report, and FAULTS the rows
that a node cannot use. LEASES counts the buckets of which a node holds tokens on lease.

The roll-out time covers the nodes that were running before the change; nodes started later already had it.`,
	define: func(c *call) action {
		c.liveFlag()
		return c.asks(func(ctx context.Context, rest *answers.Client) error {
			var fleet answers.Fleet
			if err := rest.Get(ctx, fleetPath, c.fleetQuery(), &fleet); err != nil {
				return err
			}
			return c.showFleet(fleet.Fleet)
		})
	},
}

var forgetCommand = &command{
	words: "fleet forget", args: "NODE", brief: "remove a dead node from the fleet",
	about: `Make sure that the process has ended: --wait no longer waits for a node that was removed, even if it still
admits requests. A node that reports again returns to the list. Live nodes cannot be removed: stop the process
instead.`,
	define: func(c *call) action {
		return c.changes(func(ctx context.Context, rest *answers.Client) error {
			var forgotten struct{ Node rows.Node }
			if _, err := c.send(ctx, rest, post(fleetPath+"/forget", object{"node": c.arg()}), &forgotten); err != nil {
				return err
			}
			n := forgotten.Node
			return c.print(n, func(out *page) {
				out.line("removed node %s, last reported version %d at %s", n.Node, n.Version, timeText(n.ReportedAt))
			})
		})
	},
}

// shownNode is a node with what follows from the fleet's version.
type shownNode struct {
	rows.Node
	Lag int64 `json:"lag"` // versions that it is behind
}

type shownFleet struct {
	Version int64     `json:"version"`
	At      time.Time `json:"at"`
	rows.Reach
	DecisionP99 float64 `json:"decision_p99_ms,omitempty"` // of all nodes, as the API has it

	SpreadMS *int64         `json:"spread_ms,omitempty"` // of the nodes that had reported before the change
	Nodes    []shownNode    `json:"nodes"`
	spread   *time.Duration // the same as SpreadMS
}

func newShownFleet(fleet rows.Fleet) shownFleet {
	shown := shownFleet{
		Version: fleet.Version, At: fleet.At, Reach: fleet.Reach(fleet.Version), Nodes: []shownNode{},
		DecisionP99: float64(fleet.DecisionP99()) / float64(time.Millisecond),
	}
	for _, n := range fleet.Nodes {
		n.Took = nil // of which that is
		shown.Nodes = append(shown.Nodes, shownNode{n, max(0, fleet.Version-n.Version)})
	}
	if spread, complete := fleet.Spread(); complete {
		shown.SpreadMS, shown.spread = new(spread.Milliseconds()), &spread
	}
	return shown
}

// enforcing returns how far the version has come.
func (f *shownFleet) enforcing() *enforcing { return &enforcing{Reach: f.Reach, Took: f.spread} }

func (f *shownFleet) writeTo(out *page) {
	f.enforcing().writeTo(out, fmt.Sprintf("version %d of %s: ", f.Version, timeText(f.At)))
	if f.DecisionP99 > 0 {
		out.line("decisions: 99 %% of them took at most %.3g ms in about the last minute", f.DecisionP99)
	}
	if len(f.Nodes) > 0 {
		out.show(f.Nodes)
	}
}

func (c *call) showFleet(fleet rows.Fleet) error {
	shown := newShownFleet(fleet)
	if err := c.print(shown, shown.writeTo); err != nil {
		return err
	}
	return shown.enforcing().exit()
}

// enforcing is how far a version has come, and how long that took.
type enforcing struct {
	rows.Reach
	Took   *time.Duration `json:"-"` // nil: it is not measured
	Millis int64          `json:"waited_ms"`
}

// String returns on how many nodes the version is enforced, and names the others. Silent nodes count as nodes that may
// not enforce it.
func (e *enforcing) String() string {
	if e.Live == 0 {
		return "no live nodes: not enforced anywhere yet" + e.silence()
	}
	on := counted(e.Live, "live node")
	if len(e.Silent) > 0 {
		on = counted(e.Live+len(e.Silent), "node")
	}
	text := fmt.Sprintf("enforced on %d of %s", e.Live-len(e.Behind), on)
	if e.Took != nil {
		text += fmt.Sprintf(" after %.2f s", e.Took.Seconds())
	}
	if len(e.Behind) > 0 {
		text += "; not yet on " + nodeTexts(e.Behind)
	}
	return text + e.silence()
}

// writeTo writes the text as a line after a head: in red where older policies may stay in force, in yellow where live
// nodes have yet to follow.
func (e *enforcing) writeTo(out *page, head string) {
	switch {
	case e.Live == 0 || len(e.Silent) > 0:
		out.marked(redMark, "%s%s", head, e)
	case len(e.Behind) > 0:
		out.marked(yellowMark, "%s%s", head, e)
	default:
		out.line("%s%s", head, e)
	}
}

// silence names the silent nodes at the end of a text.
func (e *enforcing) silence() string {
	if len(e.Silent) == 0 {
		return ""
	}
	return "; silent nodes may still admit requests by older policies: " + nodeTexts(e.Silent)
}

func nodeTexts(nodes []rows.NodeVersion) string {
	texts := make([]string, 0, len(nodes))
	for _, n := range nodes {
		texts = append(texts, n.String())
	}
	return strings.Join(texts, ", ")
}

// exit returns the exit code of a command that shows how far the version has come; nil: all nodes enforce it.
func (e *enforcing) exit() error {
	switch {
	case e.Enforced:
		return nil
	case e.Live == 0 || len(e.Behind) > 0:
		return exitStatus(exitIncomplete)
	}
	return exitStatus(exitSilent)
}
