package reservation

import (
	"context"
	"sync/atomic"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
)

// Keepers holds a keeper for each pool of a config, by its number. A reservation is kept, and settled, in the pool that
// it was made in.
type Keepers []*Keeper

// NewKeepers returns keepers for stores, see [Ledger.Keeper]. release closes all stores, once none is needed any more.
func NewKeepers[B Buckets](l *Ledger, buckets []B, central []Central, release func()) Keepers {
	var open atomic.Int64
	open.Store(int64(len(buckets)))
	all := make(Keepers, len(buckets))
	for i := range all {
		all[i] = l.Keeper(buckets[i], central[i], func() {
			if open.Add(-1) == 0 {
				release()
			}
		})
	}
	return all
}

// Keep remembers what an admitted request has reserved, see [Keeper.Keep].
func (all Keepers) Keep(d *decision.Decision) string { return all[d.Resolution.Pool].Keep(d) }

// Close closes all keepers. Call it once.
func (all Keepers) Close() {
	for _, k := range all {
		k.Close()
	}
}

// Settle settles a reservation in the pool that has it, see [Keeper.Settle]. A pool that cannot be read is an error
// only if no other has it.
func (all Keepers) Settle(
	ctx context.Context, n Name, use Use, admits func(org, least string) error,
) (s Settled, err error) {
	if len(all) == 1 {
		return all[0].Settle(ctx, n, use, admits)
	}
	unread := ErrUnknown
	for _, k := range all {
		value, err := k.records.Get(ctx, n.key())
		switch {
		case err != nil:
			unread = err
		case value != nil:
			return k.Settle(ctx, n, use, admits)
		}
	}
	return s, unread
}
