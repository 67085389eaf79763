package memory

import "github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limit"

// Sweep drops all buckets that have expired at now, as Run does one shard at a time.
func (s *Store) Sweep(now limit.Micros) {
	for i := range s.shards {
		s.shards[i].sweep(now)
	}
}
