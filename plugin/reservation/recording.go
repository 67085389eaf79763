package reservation

import (
	"context"
	"slices"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/decision"
)

// maxWriting bounds the calls to Records that run in the background at a time, so what a slow store can hold up.
const maxWriting = 1024

// writing is the recording of a reservation, which runs in the background.
type writing struct {
	done    chan struct{} // closed at its end
	outcome recorded      // at its end
}

// recorded says whether a reservation is recorded.
type recorded uint8

const (
	isUnsure recorded = iota // the call may have run, or may still run
	isRecorded
	isUnrecorded
)

// await returns whether the reservation is recorded. It waits for the end of the recording, but not beyond ctx.
func (w *writing) await(ctx context.Context) recorded {
	select {
	case <-w.done:
		return w.outcome
	case <-ctx.Done():
		return isUnsure
	}
}

// isRecordable reports whether another process could return tokens of the reservation.
func (r *reservation) isRecordable() bool {
	return r.keeper.shared != nil && slices.ContainsFunc(r.Statuses, func(s decision.Status) bool {
		return s.Source == decision.Redis
	})
}

// write records a reservation in the background.
func (t *Table) write(r *reservation) {
	w := r.writing
	started := t.inBackground(r.keeper, func(ctx context.Context) {
		defer close(w.done)
		w.outcome = r.add(ctx)
		if w.outcome != isRecorded {
			t.unrecorded.Add(1)
		}
	})
	if !started {
		t.unrecorded.Add(1)
		w.outcome = isUnrecorded
		close(w.done)
	}
}

// add adds the record to the shared store.
func (r *reservation) add(ctx context.Context) recorded {
	text, err := r.MarshalBinary()
	if err != nil {
		return isUnrecorded
	}
	present, err := r.keeper.shared.Records.Add(ctx, r.id.key(), text, r.TTL())
	switch {
	case MayHaveRun(err):
		return isUnsure
	case err != nil || present != nil:
		return isUnrecorded
	}
	return isRecorded
}

// discard deletes the record of a reservation that stays charged, in the background, so that the store does not keep
// more of them than the tables of all processes. What is left expires by itself.
func (t *Table) discard(r *reservation) {
	if r.writing == nil {
		return
	}
	t.inBackground(r.keeper, func(ctx context.Context) {
		if r.writing.await(ctx) != isUnrecorded {
			_, _ = r.keeper.shared.Records.Take(ctx, r.id.key()) // if it fails, the record expires
		}
	})
}

// inBackground runs a call to the records of a keeper, which stays open meanwhile, and reports whether it could be
// started. Run waits for it.
func (t *Table) inBackground(k *Keeper, call func(ctx context.Context)) bool {
	select {
	case t.slots <- struct{}{}:
	default:
		return false
	}
	if !k.use() {
		<-t.slots
		return false
	}
	t.background.Go(func() {
		call(context.Background()) // the store bounds its calls
		k.done()
		<-t.slots
	})
	return true
}

// claim is the right to settle a reservation, of which all processes together have one.
type claim uint8

const (
	isOurs       claim = iota
	isSettled          // another process has settled it
	isDoubtful         // the record is gone, and it may have been this process that took it out
	isOutOfReach       // the store did not answer
)

// claim claims a reservation of this process, whose request has ended.
func (end *requestEnd) claim(ctx context.Context) claim {
	r := end.own
	if r.writing == nil {
		return isOurs
	}
	outcome := r.writing.await(ctx)
	if outcome == isUnrecorded {
		return isOurs
	}
	text, err := r.keeper.shared.Records.Take(ctx, r.id.key())
	switch {
	case text != nil:
		return isOurs
	case err != nil:
		end.doubtful = end.doubtful || MayHaveRun(err)
		return isOutOfReach
	case end.doubtful, outcome == isUnsure:
		return isDoubtful
	}
	return isSettled
}
