package redis

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/fair"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// beatScript records the live nodes, by Redis's clock.
var beatScript = newScript(assemble("beat", nil))

// Beat records that a node is live and uses the namespace's buckets, and returns how many such nodes there are, this
// one included. After ttl (a millisecond to an hour) without a beat a node counts as silent.
func (s *Store) Beat(ctx context.Context, namespace, node string, ttl time.Duration) (live int, err error) {
	run := newCall([]string{string(appendNodes(nil, namespace))}, node, strconv.FormatInt(ttl.Milliseconds(), 10))
	err = s.evaluate(ctx, beatScript, run, func(reply *elements) {
		reply.sole()
		live = int(reply.integer())
	})
	if err != nil {
		return 0, fmt.Errorf("count the nodes of namespace %s: %w", namespace, err)
	}
	return live, nil
}

// Leave records that a node uses the namespace's buckets no more.
func (s *Store) Leave(ctx context.Context, namespace, node string) error {
	_, err := s.Beat(ctx, namespace, node, 0)
	return err
}

// Probe calls every server whose gate admits it, so that a gate opens for a server that is back before there is
// traffic. It waits until all have answered or ctx ends.
func (s *Store) Probe(ctx context.Context) { s.transport.Probe(ctx) }

// Ping returns nil when every server answers, and else the error of one. It does not go through the gates, nor change
// them.
func (s *Store) Ping(ctx context.Context) error {
	servers, ok := s.transport.(interface{ Ping(context.Context) error })
	if !ok {
		return nil // it has no servers
	}
	if err := servers.Ping(ctx); err != nil {
		return fmt.Errorf("ping %s: %w", s.name, err)
	}
	return nil
}

// demandScript exchanges the messages of nodes that share a limit fairly.
var demandScript = newScript(assemble("demand", nil))

const (
	// demandLife is how long reports and caps are kept.
	demandLife = time.Second
	// leads is how long a node leads after a report. It is less than the life of caps, so that the next leader publishes
	// before they end.
	leads = 600 * time.Millisecond
)

// ReportDemand keeps a node's report about a bucket for a second, and returns the caps that are published for it. A
// node leads from its report on, for 600 ms, if no other does. It also gets all reports, its own included.
func (s *Store) ReportDemand(ctx context.Context, key *policy.Key, node string, report []byte) (fair.Answer, error) {
	var a fair.Answer
	run := newDemandCall(key, "report", node, report, leads)
	err := s.evaluate(ctx, demandScript, run, func(reply *elements) {
		n := reply.array()
		a.Leads = reply.between(0, 1) == 1
		a.Lasts = time.Duration(reply.between(0, demandLife.Milliseconds()*60)) * time.Millisecond
		if caps := reply.text(); len(caps) > 0 {
			a.Caps = caps
		}
		for range max(n-3, 0) {
			a.Reports = append(a.Reports, reply.text())
		}
	})
	if err != nil {
		return fair.Answer{}, fmt.Errorf("report demand: %w", err)
	}
	return a, nil
}

// PublishCaps keeps the caps of a bucket for a second, if the node leads, and reports whether it does.
func (s *Store) PublishCaps(ctx context.Context, key *policy.Key, node string, caps []byte) (leads bool, err error) {
	run := newDemandCall(key, "publish", node, caps, 0)
	err = s.evaluate(ctx, demandScript, run, func(reply *elements) { leads = reply.between(0, 1) == 1 })
	if err != nil {
		return false, fmt.Errorf("publish caps: %w", err)
	}
	return leads, nil
}

func newDemandCall(key *policy.Key, action, node string, message []byte, leads time.Duration) *call {
	c := newCall([]string{string(appendDemand(nil, key))}, action, node)
	c.args = append(c.args, message, strconv.AppendInt(nil, demandLife.Milliseconds(), 10),
		strconv.AppendInt(nil, leads.Milliseconds(), 10))
	return c
}
