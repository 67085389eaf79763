package cli

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

func TestTheFleetShowsWhatANodeCannotUse(t *testing.T) {
	x := &terminal{t: t}
	c := newCall(&operator{stdout: screen{to: &x.output}}, fleetCommand)
	node := func(name, faults string, live bool, version int64) rows.Node {
		return rows.Node{
			Node: name, Version: version, Live: live, Source: "postgres", Faults: json.RawMessage(faults),
			EnforcedAt: noon.Add(300 * time.Millisecond),
		}
	}
	first := node("edge-1", `[{"table":"policies","key":"12","field":"limit","problem":"must be above 0"}]`, true, 7)
	first.Leases, first.Took = 1234, []int64{0, 0, 0, 0, 0, 0, 0, 80, 20}
	first.Redis = []rows.NodeRedis{{Name: "away:6379", AwaySince: new(noon)}, {Name: "here:6379"}}
	err := c.showFleet(rows.Fleet{Version: 7, At: noon, Nodes: []rows.Node{
		first,
		node("edge-2", `{"odd": 1}`, true, 7),
		node("edge-3", `[]`, false, 2),
	}})
	if err != exitStatus(exitSilent) {
		t.Errorf("the command ends with %v, want the exit code of a silent node", err)
	}
	for _, want := range []string{
		"enforced on 2 of 3 nodes after 0.30 s; silent nodes may still admit requests by older policies: edge-3 (version 2)",
		"table policies, key 12, field limit, problem must be above 0", "edge-3  2 ", " no ", " 1234 ",
		"99 % of them took at most 0.25 ms in about the last minute",
		"name away:6379, away since 2099-01-01T12:00:00Z; name here:6379",
	} {
		if shown := x.output.String(); !strings.Contains(shown, want) || strings.Contains(shown, "80, 20") {
			t.Errorf("the fleet is shown as\n%s\nwant %q in it", x.output.String(), want)
		}
	}
}
