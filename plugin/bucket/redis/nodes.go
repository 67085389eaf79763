package redis

import (
	"context"
	"fmt"
	"strconv"
	"time"
)

// beatScript records the live nodes, by Redis's clock.
var beatScript = newScript(assemble("beat", nil))

// maxLife bounds how long a node counts as live after its last beat.
const maxLife = time.Hour

// Beat records that a node is live and uses the namespace's buckets, and returns how many such nodes there are, this
// one included. After ttl (at most an hour) without a beat a node counts as silent.
func (s *Store) Beat(ctx context.Context, namespace, node string, ttl time.Duration) (live int, err error) {
	return s.beat(ctx, namespace, node, min(max(ttl, time.Millisecond), maxLife))
}

// Leave records that a node uses the namespace's buckets no more.
func (s *Store) Leave(ctx context.Context, namespace, node string) error {
	_, err := s.beat(ctx, namespace, node, 0)
	return err
}

func (s *Store) beat(ctx context.Context, namespace, node string, ttl time.Duration) (int, error) {
	key := string(appendNodes(nil, namespace))
	run := newCall([]string{key}, node, strconv.FormatInt(ttl.Milliseconds(), 10))
	err := s.transport.Run(ctx, beatScript, run)
	live := int64(0)
	if err == nil {
		live, err = singleInteger(run.reply)
	}
	if err != nil {
		return 0, fmt.Errorf("count the nodes of namespace %s: %w", namespace, err)
	}
	return int(live), nil
}

// Probe pings every server whose gate admits it, so that a gate opens for a server that is back before there is
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
