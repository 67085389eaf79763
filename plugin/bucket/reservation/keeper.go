package reservation

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"slices"
	"sync/atomic"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
)

// Keeper keeps the reservations of one store in a ledger. It keeps the store open for as long as one of them waits: a
// config may be replaced between a request and its end. It is safe for concurrent use.
type Keeper struct {
	ledger  *Ledger
	buckets Buckets
	central Central // nil: its reservations are in this process alone
	records Records // central, or those of this process alone
	release func()
	uses    atomic.Int64 // the keeper itself, until it is closed, and each of its reservations
}

// Central is the part of a store that all processes share.
type Central interface {
	Records
	// Fingerprint identifies the store in all processes that have opened it: 16 hexadecimal digits, in lower case.
	Fingerprint() string
}

// Keeper returns a keeper for a store. With central, reservations are recorded there, so that other processes can
// settle them; nil: only this process can. release closes the store.
func (l *Ledger) Keeper(buckets Buckets, central Central, release func()) *Keeper {
	k := &Keeper{ledger: l, buckets: buckets, central: central, release: release}
	k.uses.Store(1)
	if central == nil {
		k.records = newLocal(l.options.Elapsed, maxLocal)
		return k
	}
	k.records = central
	l.mu.Lock()
	l.central = append(l.central, k)
	l.mu.Unlock()
	select {
	case l.opened <- struct{}{}:
	default: // Run has a signal already
	}
	return k
}

// Keep remembers what an admitted request has reserved in limits that settle, and returns the token of the reservation,
// or "" if there is nothing to settle. It copies what it keeps of d, and waits for nothing.
func (k *Keeper) Keep(d *decision.Decision) string {
	record := NewRecord(d, k.ledger.options.Now())
	if record == nil || !k.use() {
		return ""
	}
	var bits [16]byte
	rand.Read(bits[:]) // never fails: it ends the program instead
	r := &reservation{Record: record, key: hex.EncodeToString(bits[:]), needs: record.Needs(), keeper: k}
	r.slots = record.Slots()
	isCentral := func(s decision.Status) bool { return s.Source == decision.Redis }
	if k.central != nil && slices.ContainsFunc(r.Statuses, isCentral) { // another process could return tokens
		k.ledger.startWriting(r)
	}
	k.ledger.add(r)
	r.ReportReserved(k.ledger.options.Observer)
	t := token{key: r.key}
	if r.writing != nil {
		t.store, t.needs = k.central.Fingerprint(), r.needs
	}
	return t.String()
}

// Close closes the store once no reservation needs it any more. Call it once.
func (k *Keeper) Close() {
	l := k.ledger
	l.mu.Lock()
	l.central = slices.DeleteFunc(l.central, func(other *Keeper) bool { return other == k })
	l.mu.Unlock()
	k.done()
}

// use adds a reservation, and reports false if the store is closed.
func (k *Keeper) use() bool {
	for {
		uses := k.uses.Load()
		if uses == 0 {
			return false
		}
		if k.uses.CompareAndSwap(uses, uses+1) {
			return true
		}
	}
}

// done removes a use, and closes the store after the last one.
func (k *Keeper) done() {
	if k.uses.Add(-1) == 0 {
		k.release()
	}
}

// maxWriting bounds the calls to Records that run in the background at a time, so what a slow store can hold up.
const maxWriting = 1024

// writing follows the background call that writes the record of a reservation.
type writing struct {
	done            chan struct{} // closed at its end
	written, absent bool          // at its end: whether it is certain that the record is there, or never will be
}

// await waits for the end of the call, if there is one, but not beyond ctx. It reports whether it is certain that the
// record was written, and whether it is certain that it was not.
func (w *writing) await(ctx context.Context) (written, absent bool) {
	if w == nil {
		return false, true
	}
	select {
	case <-w.done:
		return w.written, w.absent
	case <-ctx.Done():
		return false, false
	}
}

// recordLife returns how long the record of a reservation is kept, for late settlements.
func (r *reservation) recordLife() limit.Micros { return 2 * r.Timeout }

// hasExpired reports whether the record of a reservation, if there was one, is gone by itself.
func (r *reservation) hasExpired() bool {
	return r.keeper.ledger.options.Elapsed()-r.made >= r.recordLife()
}

// startWriting writes the record of a reservation in the background.
func (l *Ledger) startWriting(r *reservation) {
	w := &writing{done: make(chan struct{}), absent: true}
	r.writing = w
	end := func() {
		if !w.written {
			l.count(&l.stats.Unrecorded)
		}
		close(w.done)
	}
	if !l.inBackground(r.keeper, func(ctx context.Context) {
		defer end()
		if text, err := r.MarshalBinary(); err == nil {
			present, err := r.keeper.records.Swap(ctx, r.key, nil, text, time.Duration(r.recordLife())*time.Microsecond)
			w.written, w.absent = err == nil && present == nil, present != nil || err != nil && !MayHaveRun(err)
		}
	}) {
		end()
	}
}

// discard ends a reservation that stays charged. It deletes its record in the background, so that the store does not
// keep more of them than the ledgers of all processes. What is left expires by itself.
func (l *Ledger) discard(r *reservation) {
	defer r.keeper.done()
	if r.writing == nil {
		return
	}
	l.inBackground(r.keeper, func(ctx context.Context) {
		text, err := r.MarshalBinary()
		if _, absent := r.writing.await(ctx); err == nil && !absent {
			_, _ = r.keeper.records.Swap(ctx, r.key, text, nil, 0)
		}
	})
}

// inBackground runs a call to the records of a keeper, which stays open meanwhile, and reports whether it could be
// started. Run waits for it.
func (l *Ledger) inBackground(k *Keeper, call func(ctx context.Context)) bool {
	if !k.use() {
		return false
	}
	started := l.background.TryGo(func() error {
		defer k.done()
		call(context.Background()) // the store bounds its calls
		return nil
	})
	if !started {
		k.done()
	}
	return started
}

// claim says whether this process may settle a reservation. Of all processes, at most one may.
type claim uint8

const (
	claimWon         claim = iota
	claimedElsewhere       // another process has settled it
	claimDoubtful          // there is neither record nor claim, and a call that had no answer may be the cause
	claimMissing           // another process has made it, and its record may be on its way
	claimUnreachable       // the store is not open, or did not answer
)

// isFinal reports whether the claim need not be made again.
func (c claim) isFinal() bool { return c < claimMissing }

const (
	// claimMark begins what replaces a claimed record, and no record. What follows names the claimant, so that a claim
	// whose answer was lost can be made again.
	claimMark = "\x00"
	// claimTime is how long a claim is kept.
	claimTime = 30 * time.Second
)

// isRecord reports whether a text is a record: there is one, and it is not claimed.
func isRecord(text []byte) bool { return len(text) > 0 && text[0] != claimMark[0] }

// claim claims the record of a request that has ended.
func (end *requestEnd) claim(ctx context.Context) claim {
	written := true
	if r := end.own; r != nil {
		var absent bool
		if written, absent = r.writing.await(ctx); absent {
			return claimWon
		}
		end.text, _ = r.MarshalBinary() // as it was written
	} else if read := end.read(ctx); read != claimWon {
		return read
	}
	present, err := end.keeper.records.Swap(ctx, end.key, end.text, end.mark, claimTime)
	switch {
	case err != nil:
		end.doubtful = end.doubtful || MayHaveRun(err)
		return claimUnreachable
	case bytes.Equal(present, end.text), bytes.Equal(present, end.mark):
		return claimWon
	case present == nil && end.own != nil && (end.doubtful || !written || end.own.hasExpired()):
		return claimDoubtful
	}
	return claimedElsewhere
}

// read reads the record that another process has written, once. A claim that is won means that it is there.
func (end *requestEnd) read(ctx context.Context) claim {
	if end.text != nil {
		return claimWon
	}
	text, err := end.keeper.records.Get(ctx, end.key)
	switch {
	case err != nil:
		return claimUnreachable
	case text == nil && !end.missing:
		end.missing = true
		return claimMissing
	case !isRecord(text):
		return claimedElsewhere
	}
	end.text = text
	return claimWon
}
