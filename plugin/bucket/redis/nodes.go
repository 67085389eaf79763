package redis

import (
	"context"
	"fmt"
	"time"
)

// beatScript keeps the nodes that live, by Redis's clock.
var beatScript = newScript(assemble("beat", nil))

// longestLife bounds how long a node that says nothing more counts as alive.
const longestLife = time.Hour

// Beat tells that a node lives and uses the namespace's buckets, and answers how many such nodes do, this one included.
// After ttl (at most an hour) without a word a node counts as dead. With the beat goes the newest form of buckets that
// this node reads; the answer says which one all live nodes read, and so which one may be written.
func (s *Store) Beat(ctx context.Context, namespace, node string, ttl time.Duration) (live int, err error) {
	return s.beat(ctx, namespace, node, min(max(ttl, time.Millisecond), longestLife))
}

// Leave tells that a node uses the namespace's buckets no more.
func (s *Store) Leave(ctx context.Context, namespace, node string) error {
	_, err := s.beat(ctx, namespace, node, 0)
	return err
}

func (s *Store) beat(ctx context.Context, namespace, node string, ttl time.Duration) (int, error) {
	key := string(appendNodes(nil, namespace))
	reply, err := s.transport.Run(ctx, beatScript, []string{key}, []any{node, ttl.Milliseconds(), s.reads})
	if err != nil {
		return 0, fmt.Errorf("count the nodes of namespace %s: %w", namespace, err)
	}
	if len(reply) == 2 {
		live, ok := reply[0].(int64)
		reads, okReads := reply[1].(int64)
		if ok && okReads {
			s.formats.heard(namespace, int(reads))
			return int(live), nil
		}
	}
	return 0, fmt.Errorf("count the nodes of namespace %s: %w: %v", namespace, errReply, reply)
}

// Probe asks every server whose gate lets it whether it lives, so that one that is back is known to be without traffic.
// What it learns its gates learn. It waits until all have answered or ctx ends.
func (s *Store) Probe(ctx context.Context) { s.transport.Probe(ctx) }

// Ping returns nil when every server answers, and else why one does not. It asks past the gates, which learn nothing of
// it.
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
