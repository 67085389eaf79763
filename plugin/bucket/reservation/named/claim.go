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
