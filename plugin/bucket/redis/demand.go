package redis

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// demandScript exchanges the messages of nodes that share a limit fairly.
var demandScript = newScript(assemble("demand", nil))

const (
	// demandLife is how long reports and caps are kept.
	demandLife = time.Second
	// leads is how long a node leads after a report. It is less than the life of caps, so that the next leader publishes
	// before they end.
	leads = 600 * time.Millisecond
)

// DemandAnswer is the answer to a report of demand.
type DemandAnswer struct {
	Leads   bool          // the node leads: no other does
	Caps    []byte        // nil: none
	Lasts   time.Duration // of Caps
	Reports [][]byte      // of all nodes, if the node leads
}

// ReportDemand keeps a node's report about a bucket for a second, and returns the caps that are published for it. A
// node leads from its report on, for 600 ms, if no other does. It also gets all reports, its own included.
func (s *Store) ReportDemand(ctx context.Context, key *policy.Key, node string, report []byte) (DemandAnswer, error) {
	run := newDemandCall(key, "report", node, report, demandLife, leads)
	if err := s.transport.Run(ctx, demandScript, run); err != nil {
		return DemandAnswer{}, fmt.Errorf("report demand: %w", err)
	}
	reply := elements{left: run.reply}
	n := reply.array()
	a := DemandAnswer{Leads: reply.between(0, 1) == 1}
	a.Lasts = time.Duration(reply.between(0, demandLife.Milliseconds()*60)) * time.Millisecond
	if caps := reply.text(); len(caps) > 0 {
		a.Caps = caps
	}
	for range max(n-3, 0) {
		a.Reports = append(a.Reports, reply.text())
	}
	if err := reply.end(); err != nil {
		return DemandAnswer{}, fmt.Errorf("report demand: %w", &Error{err: err})
	}
	return a, nil
}

// PublishCaps keeps the caps of a bucket for a second, if the node leads, and reports whether it does.
func (s *Store) PublishCaps(ctx context.Context, key *policy.Key, node string, caps []byte) (leads bool, err error) {
	run := newDemandCall(key, "publish", node, caps, demandLife, 0)
	if err := s.transport.Run(ctx, demandScript, run); err != nil {
		return false, fmt.Errorf("publish caps: %w", err)
	}
	reply := elements{left: run.reply}
	leads = reply.between(0, 1) == 1
	if err := reply.end(); err != nil {
		return false, fmt.Errorf("publish caps: %w", &Error{err: err})
	}
	return leads, nil
}

func newDemandCall(key *policy.Key, action, node string, message []byte, life, leads time.Duration) *call {
	c := newCall([]string{string(appendDemand(nil, key))}, action, node)
	c.args = append(c.args, message, strconv.AppendInt(nil, life.Milliseconds(), 10),
		strconv.AppendInt(nil, leads.Milliseconds(), 10))
	return c
}
