package named

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/reservation"
)

// Request describes a check that reserves.
type Request struct {
	Name    Name
	Hash    []byte        // of the check: another check with the same name gets ErrReused
	Org     string        // that is billed
	Tokens  int64         // to reserve in each limit that settles
	Timeout time.Duration // after which a settlement returns nothing
}

// Claim gives its holder the sole right to decide about a check that reserves. The holder must call Keep or Release,
// once.
type Claim struct {
	ledger *Ledger
	key    string
	entry  *entry
	value  []byte // as it is kept
}

// Claim returns the claim of a request; or, if a request with that name was admitted already, the answer that it got.
// It waits a moment for a request that is still being decided.
func (l *Ledger) Claim(ctx context.Context, r *Request) (*Claim, json.RawMessage, error) {
	e := &entry{
		Request: r.Hash, Org: r.Org, Tokens: r.Tokens, Timeout: r.Timeout.Milliseconds(),
		Made: l.options.Now().UnixMilli(),
	}
	e.begin(claimed, l.options.Now())
	value, err := e.encode()
	if err != nil {
		return nil, nil, err
	}
	key, waiting := r.Name.key(), l.newWaiter(ctx)
	for {
		present, err := l.add(ctx, key, value, 2*r.Timeout)
		if err != nil {
			return nil, nil, err
		}
		if present == nil {
			return &Claim{l, key, e, value}, nil, nil
		}
		first, err := decode(present)
		switch {
		case err != nil:
			return nil, nil, err
		case !bytes.Equal(first.Request, r.Hash):
			return nil, nil, ErrReused
		case first.State != claimed:
			return nil, first.Answer, nil
		case l.doubts.take(present): // it has arrived after its request was answered
			return &Claim{l, key, first, present}, nil, nil
		case !first.isUnderway(l.options.Now()):
			return nil, nil, ErrUncertain
		}
		if err := waiting.wait(); err != nil {
			return nil, nil, err
		}
	}
}

// SettleBy returns when the timeout of the reservation ends.
func (c *Claim) SettleBy() time.Time { return time.UnixMilli(c.entry.Made + c.entry.Timeout).UTC() }

// Keep stores what an admitted check has reserved, with its answer. A nil record means that no limit settles. An error
// means that the reservation stays charged, and cannot be settled.
func (c *Claim) Keep(ctx context.Context, record *reservation.Record, answer json.RawMessage) error {
	ctx, cancel := finishing(ctx)
	defer cancel()
	e := *c.entry
	e.State, e.Nonce, e.Since, e.Answer = reserved, "", 0, answer
	if record != nil {
		kept, err := record.MarshalBinary()
		if err != nil {
			return fmt.Errorf("keep a reservation: %w", err)
		}
		e.Record = kept
		for i := range record.Bounds {
			e.Rows = append(e.Rows, record.Bounds[i].Policy.Row)
		}
	}
	next, err := e.encode()
	if err != nil {
		return err
	}
	ok, err := c.ledger.swap(ctx, c.key, c.value, next)
	switch {
	case err != nil:
		return err
	case !ok:
		return fmt.Errorf("keep a reservation: %w", ErrUncertain)
	}
	if record == nil {
		return nil
	}
	c.ledger.awaited.add(c.key, micros(e.Made+e.Timeout))
	record.ReportReserved(c.ledger.options.Observer)
	return nil
}

// Release ends the claim of a check that reserved nothing: its id is free again. If that fails, it is free once the
// entry ends.
func (c *Claim) Release(ctx context.Context) {
	ctx, cancel := finishing(ctx)
	defer cancel()
	if _, err := c.ledger.options.Records.Take(ctx, c.key); err != nil {
		c.ledger.options.Log.Warn("releasing the id of a reservation failed: it is in use until its timeout", "error", err)
	}
}

// mostDoubts bounds the claims that may arrive in the store later: about 5 MB.
const mostDoubts = 10_000

// doubts holds the claims of this process that the store did not answer, by their entries: they may arrive there later.
// Nothing was charged for them, so a claim that is taken out may be used or deleted. It is safe for concurrent use.
type doubts struct {
	mu      sync.Mutex
	byValue map[string]doubt // each value has a nonce
}

// doubt describes a claim that may arrive later.
type doubt struct {
	key   string
	since time.Time // when the store did not answer
}

// add adds a claim, if there is room.
func (d *doubts) add(key string, value []byte, now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.byValue) >= mostDoubts {
		return
	}
	if d.byValue == nil {
		d.byValue = map[string]doubt{}
	}
	d.byValue[string(value)] = doubt{key, now}
}

// take takes a claim out, and reports whether it was there.
func (d *doubts) take(value []byte) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, ok := d.byValue[string(value)]
	delete(d.byValue, string(value))
	return ok
}

// recent drops the claims that are older than an attempt may be, and returns the others as key by value.
func (d *doubts) recent(now time.Time) map[string]string {
	d.mu.Lock()
	defer d.mu.Unlock()
	keys := make(map[string]string, len(d.byValue))
	for value, one := range d.byValue {
		if now.Sub(one.since) >= maxAttempt {
			delete(d.byValue, value)
			continue
		}
		keys[value] = one.key
	}
	return keys
}

// releaseDoubts deletes the claims that have arrived in the store after all, so that other processes can use their ids.
// While the records cannot be read it leaves the others for the next call.
func (l *Ledger) releaseDoubts(ctx context.Context) {
	for value, key := range l.doubts.recent(l.options.Now()) {
		present, err := l.options.Records.Get(ctx, key)
		if err != nil {
			return
		}
		if bytes.Equal(present, []byte(value)) && l.doubts.take(present) {
			(&Claim{ledger: l, key: key}).Release(ctx)
		}
	}
}
