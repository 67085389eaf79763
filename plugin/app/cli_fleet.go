package app

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/pgstore"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
)

var fleetCommand = &command{
	words: "fleet", brief: "tell which version each node enforces, and how long the last change took to reach the last one",
	about: `Exit code 3 when a live node does not enforce the last version yet.`,
	define: func(c *call) action {
		c.liveFlag()
		return c.reads(func(ctx context.Context, s *pgstore.Store) error {
			fleet, err := s.Fleet(ctx, c.change.within.length)
			if err != nil {
				return err
			}
			return c.showFleet(fleet)
		})
	},
}

// shownNode is a node with what follows from the fleet's version.
type shownNode struct {
	pgstore.Node
	Lag int64 `json:"lag"` // versions that it is behind
}

func (c *call) showFleet(fleet pgstore.Fleet) error {
	nodes := []shownNode{}
	live := 0
	for _, n := range fleet.Nodes {
		nodes = append(nodes, shownNode{n, max(0, fleet.Version-n.Version)})
		if n.Live {
			live++
		}
	}
	spread, complete := fleet.Spread()
	shown := struct {
		Version  int64       `json:"version"`
		At       time.Time   `json:"at"`
		Live     int         `json:"live_nodes"`
		Behind   int         `json:"behind"` // live nodes that do not enforce the version
		SpreadMS *int64      `json:"spread_ms,omitempty"`
		Nodes    []shownNode `json:"nodes"`
	}{fleet.Version, fleet.At, live, len(fleet.Behind(fleet.Version)), nil, nodes}
	if complete {
		ms := spread.Milliseconds()
		shown.SpreadMS = &ms
	}
	err := c.print(shown, func(out *page) {
		reached := fmt.Sprintf("enforced on %d of %s", live-shown.Behind, counted(live, "live node"))
		switch {
		case live == 0:
			reached = "no live node has reported"
		case complete:
			reached += " after " + seconds(spread)
		}
		out.line("version %d of %s: %s", shown.Version, timeText(shown.At), reached)
		nodeTable(out, nodes)
	})
	if err == nil && shown.Behind > 0 {
		return said(exitIncomplete)
	}
	return err
}

func nodeTable(out *page, nodes []shownNode) {
	if len(nodes) == 0 {
		return
	}
	columns(out, "NODE|VERSION|LAG|LIVE|ENFORCED SINCE|REPORTED|SOURCE|FAULTS", nodes, func(n shownNode) []any {
		return []any{n.Node.Node, n.Version, n.Lag, n.Live, n.EnforcedAt, n.ReportedAt, n.Source, faultCount(n.Faults)}
	})
	for _, n := range nodes {
		for _, fault := range faultTexts(n.Faults) {
			out.line("%s %s", n.Node.Node, fault)
		}
	}
}

// faultCount is how many faults a node reports.
func faultCount(faults json.RawMessage) string {
	list, err := nodeFaults(faults)
	if err != nil {
		return "unreadable"
	}
	return fmt.Sprint(len(list))
}

// faultTexts tell, after the name of a node, what it reports of rows.
func faultTexts(faults json.RawMessage) []string {
	list, err := nodeFaults(faults)
	if err != nil {
		return []string{"reports what cannot be read: " + string(faults)}
	}
	var texts []string
	for _, fault := range list {
		texts = append(texts, "cannot use "+fault.Error())
	}
	return texts
}

// nodeFaults are the rows that a node cannot use.
func nodeFaults(faults json.RawMessage) (list []policy.Fault, err error) {
	if err := json.Unmarshal(faults, &list); err != nil {
		return nil, fmt.Errorf("read the faults of a node: %w", err)
	}
	return list, nil
}
