package reservation

import (
	"context"
	"slices"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
)

// maxWriting bounds the calls to Records that run in the background at a time, so what a slow store can hold up.
const maxWriting = 1024

// writing follows the background call that writes the record of a reservation.
type writing struct {
	done    chan struct{} // closed at its end
	outcome recordState   // at its end
}

// recordState says whether the record of a reservation was written.
type recordState uint8

const (
	recordUncertain recordState = iota // the call may have run, or may still run
	recordWritten
	recordNotWritten
)

// await waits for the end of the call, but not beyond ctx, and returns whether the record was written.
func (w *writing) await(ctx context.Context) recordState {
	select {
	case <-w.done:
		return w.outcome
	case <-ctx.Done():
		return recordUncertain
	}
}

// isRecordable reports whether another process could return tokens of the reservation.
func (r *reservation) isRecordable() bool {
	return r.keeper.central != nil && slices.ContainsFunc(r.Statuses, func(s decision.Status) bool {
		return s.Source == decision.Redis
	})
}

// startWriting writes the record of a reservation in the background.
func (t *Table) startWriting(r *reservation) {
	w := r.writing
	started := t.inBackground(r.keeper, func(ctx context.Context) {
		defer close(w.done)
		w.outcome = r.writeRecord(ctx)
		if w.outcome != recordWritten {
			t.unrecorded.Add(1)
		}
	})
	if !started {
		t.unrecorded.Add(1)
		w.outcome = recordNotWritten
		close(w.done)
	}
}

// writeRecord adds the record to the central store.
func (r *reservation) writeRecord(ctx context.Context) recordState {
	text, err := r.MarshalBinary()
	if err != nil {
		return recordNotWritten
	}
	present, err := r.keeper.central.Records.Add(ctx, r.id.key(), text, r.TTL())
	switch {
	case MayHaveRun(err):
		return recordUncertain
	case err != nil || present != nil:
		return recordNotWritten
	}
	return recordWritten
}

// discard deletes the record of a reservation that stays charged, in the background, so that the store does not keep
// more of them than the tables of all processes. What is left expires by itself.
func (t *Table) discard(r *reservation) {
	if r.writing == nil {
		return
	}
	t.inBackground(r.keeper, func(ctx context.Context) {
		if r.writing.await(ctx) != recordNotWritten {
			_, _ = r.keeper.central.Records.Take(ctx, r.id.key()) // if it fails, the record expires
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

// claim says whether this process may settle a reservation. Of all processes, at most one may.
type claim uint8

const (
	claimWon         claim = iota
	claimedElsewhere       // another process has settled it
	claimDoubtful          // there is neither record nor claim, and this process may have claimed it before
	claimUnreachable       // the store did not answer
)

// claim claims a reservation of this process, whose request has ended.
func (end *requestEnd) claim(ctx context.Context) claim {
	r := end.own
	if r.writing == nil {
		return claimWon
	}
	outcome := r.writing.await(ctx)
	if outcome == recordNotWritten {
		return claimWon
	}
	won, taken, err := r.keeper.central.Records.ClaimOwn(ctx, r.id.key(), end.claimant)
	switch {
	case err != nil:
		end.doubtful = end.doubtful || MayHaveRun(err)
		return claimUnreachable
	case won:
		return claimWon
	case !taken && (end.doubtful || outcome == recordUncertain):
		return claimDoubtful
	}
	return claimedElsewhere
}
