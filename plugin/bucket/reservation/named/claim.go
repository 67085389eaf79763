package named

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
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
	c := &Claim{l, r.Name.key(), e, value}
	waiting, cancel := context.WithTimeout(ctx, l.options.Patience)
	defer cancel()
	for {
		present, err := l.swap(ctx, c.key, nil, value, 2*r.Timeout)
		switch {
		case err != nil:
			if reservation.MayHaveRun(err) {
				l.doubt(c)
			}
			return nil, nil, err
		case bytes.Equal(present, value):
			return c, nil, nil
		}
		first, err := decode(present)
		switch {
		case err != nil:
			return nil, nil, err
		case !bytes.Equal(first.Request, r.Hash):
			return nil, nil, ErrReused
		case first.State != claimed:
			return nil, first.Answer, nil
		case !first.isUnderway(l.options.Now()):
			return nil, nil, ErrUncertain
		}
		if err := pause(waiting); err != nil {
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
	present, err := c.ledger.swap(ctx, c.key, c.value, next, 0)
	switch {
	case err != nil:
		return err
	case !bytes.Equal(present, next):
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
	if _, err := c.delete(ctx); err != nil {
		c.ledger.options.Log.Warn("releasing the id of a reservation failed: it is in use until its timeout", "error", err)
	}
}

// delete deletes the entry of a claim, and reports whether it was there.
func (c *Claim) delete(ctx context.Context) (bool, error) {
	present, err := c.ledger.options.Records.Swap(ctx, c.key, c.value, nil, 0)
	return bytes.Equal(present, c.value), err
}

// mostDoubts bounds the claims that may arrive in the store later: about 5 MB.
const mostDoubts = 10_000

// doubt remembers a claim that may arrive in the store later. Nothing is charged for it.
func (l *Ledger) doubt(c *Claim) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.doubts) < mostDoubts {
		l.doubts = append(l.doubts, c)
	}
}

// releaseDoubts deletes the claims that have arrived in the store after all, so that their ids are free again. It
// leaves the others for the next call, for as long as an attempt may take.
func (l *Ledger) releaseDoubts(ctx context.Context) {
	l.mu.Lock()
	doubts := l.doubts
	l.doubts = nil
	l.mu.Unlock()
	var failed error
	for _, c := range doubts {
		ok := false
		if failed == nil {
			ok, failed = c.delete(ctx)
		}
		if !ok && c.entry.isUnderway(l.options.Now()) {
			l.doubt(c)
		}
	}
}
