package memory

import (
	"encoding/gob"
	"fmt"
	"hash/maphash"
	"unique"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// saved is a bucket on its way to another process.
type saved struct {
	Key    policy.Key
	State  limit.State
	Expiry limit.Micros
	Used   int32
}

// Save writes the buckets, shard by shard, and then an empty list.
func (s *Store) Save(to *gob.Encoder) error {
	var list []saved
	for i := range s.shards {
		if list = s.shards[i].save(list[:0], s.now()); len(list) == 0 {
			continue
		}
		if err := to.Encode(list); err != nil {
			return fmt.Errorf("save buckets: %w", err)
		}
	}
	return to.Encode([]saved{})
}

// save appends the shard's buckets that have not expired.
func (sh *shard) save(list []saved, now limit.Micros) []saved {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	for _, b := range sh.byHash {
		for ; b != nil; b = b.next {
			if b.expiry > now {
				list = append(list, saved{b.key, b.state, b.expiry, b.used})
			}
		}
	}
	return list
}

// Load reads the buckets that Save has written, and returns the function that adds them to the store.
func (s *Store) Load(from *gob.Decoder) (add func(), err error) {
	var lists [][]saved
	for {
		var list []saved
		if err := from.Decode(&list); err != nil {
			return nil, fmt.Errorf("load buckets: %w", err)
		}
		if len(list) == 0 {
			break
		}
		lists = append(lists, list)
	}
	return func() {
		for _, list := range lists {
			for i := range list {
				s.add(&list[i])
			}
		}
	}, nil
}

// add adds a bucket, unless there is one of its key already.
func (s *Store) add(from *saved) {
	from.Key.Namespace, from.Key.Policy = unique.Make(from.Key.Namespace).Value(), unique.Make(from.Key.Policy).Value()
	hash := maphash.Comparable(s.seed, from.Key)
	sh := &s.shards[s.shardIndex(hash)]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.findBucket(hash, &from.Key) == nil {
		b := sh.makeBucket(hash, &from.Key, s.perShard, &taking{now: s.now()})
		b.state, b.expiry, b.used = from.State, from.Expiry, from.Used
	}
}
