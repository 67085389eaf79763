package cli

import (
	"fmt"
	"strings"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

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
		text += " after " + seconds(*e.Took)
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

// nodeTexts names nodes with their versions.
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
