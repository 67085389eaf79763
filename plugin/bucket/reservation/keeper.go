package reservation

import (
	"crypto/rand"
	"encoding/hex"
	"sync/atomic"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
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
	l.addKeeper(k)
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
	if r.isRecordable() {
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
	if k.central != nil {
		k.ledger.removeKeeper(k)
	}
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
