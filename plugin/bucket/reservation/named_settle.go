package reservation

import (
	"bytes"
	"context"
	"fmt"
)

// Settled says what became of a reservation that a caller has named.
type Settled struct {
	Tokens  int64    `json:"tokens"` // that were reserved
	Actual  int64    `json:"actual"` // that were used
	Late    bool     `json:"late,omitempty"`
	Changes []Change `json:"changes"` // one for each limit that settles

	// Unknown reports that the process that settled ended before it answered: it is unknown which buckets it changed.
	Unknown bool `json:"-"`
	// Repeated reports that it was settled before.
	Repeated bool `json:"-"`
}

// Change says what became of a reservation in one limit.
type Change struct {
	Policy   string `json:"policy"`
	Row      int64  `json:"row,omitempty"` // id of the policy in the database; 0: it is in the config
	Endpoint string `json:"endpoint,omitempty"`
	Scope    string `json:"scope"`
	Change   int64  `json:"change"` // tokens that the bucket got back (< 0), or was charged (> 0)
	Lost     bool   `json:"lost,omitempty"`
}

// ActualError is the error of a settlement that names another amount than the first one.
type ActualError struct{ First int64 }

func (e *ActualError) Error() string {
	return fmt.Sprintf("the reservation was settled to %d tokens already", e.First)
}

// Settle replaces a reservation by the tokens that were really used, once. A repetition returns the first settlement.
// admits is called with the org that it is billed to and its tokens before anything changes: its error, if any, is
// returned, and nothing is settled.
func (k *Keeper) Settle(
	ctx context.Context, n Name, actual int64, admits func(org string, tokens int64) error,
) (s Settled, err error) {
	key := n.key()
	waiting, cancel := context.WithTimeout(ctx, k.ledger.options.Patience)
	defer cancel()
	for {
		value, err := k.records.Get(ctx, key)
		if err != nil {
			return s, fmt.Errorf("read the entry of a reservation: %w", err)
		}
		if value == nil {
			return s, ErrUnknown
		}
		e, err := decodeEntry(value)
		if err != nil {
			return s, err
		}
		if err := admits(e.Org, e.Tokens); err != nil {
			return s, err
		}
		var done bool
		if e.State == reserved {
			s, done, err = k.settle(ctx, key, value, e, actual)
		} else {
			s, done, err = e.outcome(actual, k.ledger.millis())
		}
		if done || err != nil {
			return s, err
		}
		if err := pause(waiting); err != nil { // another request was faster
			return s, err
		}
	}
}

// settle settles an entry that is reserved, and reports whether it did: if not, another request was faster. An error
// means that nothing was settled.
func (k *Keeper) settle(
	ctx context.Context, key string, value []byte, e *entry, actual int64,
) (s Settled, done bool, err error) {
	record, err := e.decodeRecord(k.central == nil)
	if err != nil {
		return s, false, err
	}
	e.Actual = actual
	began := e.begin(settling, k.ledger.millis())
	if present, err := k.swap(ctx, key, value, began, 0); err != nil || !bytes.Equal(present, began) {
		return s, false, err
	}
	if k.ledger.take(key) != nil {
		k.done()
	}
	ctx, cancel := finishing(ctx)
	defer cancel()
	s = k.apply(ctx, e, record)
	e.State, e.Nonce, e.Record, e.Rows, e.Settlement = settled, "", nil, nil, &s
	if _, err := k.swap(ctx, key, began, e.encode(), 0); err != nil {
		k.ledger.options.Log.Warn("a settlement was made and not recorded: repetitions answer that its outcome is unknown",
			"error", err)
	}
	return s, true, nil
}

// apply changes the buckets of a reservation, and returns what became of it. It is called once for each reservation.
func (k *Keeper) apply(ctx context.Context, e *entry, record *Record) Settled {
	s := Settled{Tokens: e.Tokens, Actual: e.Actual, Late: e.Since >= e.Made+e.Timeout, Changes: []Change{}}
	if record == nil {
		return s
	}
	all := make([]Settlement, len(record.Bounds))
	for i := range all {
		all[i].Actual = e.Actual
		if s.Late {
			all[i].Outcome = Late
		}
	}
	if err := record.Settle(ctx, k.buckets, all); err != nil {
		k.ledger.options.Log.Error("settling a reservation failed", "error", err)
	}
	for i := range all {
		b := &record.Bounds[i]
		s.Changes = append(s.Changes, Change{
			Policy: b.Policy.Name, Row: e.Rows[i], Endpoint: b.Key.Endpoint, Scope: b.Policy.Scope.String(),
			Change: all[i].Change, Lost: all[i].Outcome == Lost,
		})
	}
	if s.Late && !e.TimedOut {
		record.ReportUnsettled(k.ledger.options.Observer, TimedOut, e.delay())
	}
	record.ReportSettled(k.ledger.options.Observer, all, e.delay())
	return s
}
