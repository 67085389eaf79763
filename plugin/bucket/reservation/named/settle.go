package named

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/reservation"
)

// Settlement says what became of a reservation.
type Settlement struct {
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

// Reserved describes a reservation to settle.
type Reserved struct {
	Org    string // that it is billed to
	Tokens int64
}

// ActualError is the error of a settlement that names another amount than the first one.
type ActualError struct{ First int64 }

func (e *ActualError) Error() string {
	return fmt.Sprintf("the reservation was settled to %d tokens already", e.First)
}

// Settle replaces a reservation by the tokens that were really used, once. A repetition returns the first settlement.
// admits is called before anything changes: its error, if any, is returned, and nothing is settled.
func (l *Ledger) Settle(
	ctx context.Context, n Name, actual int64, admits func(Reserved) error,
) (Settlement, error) {
	key := n.key()
	waiting, cancel := context.WithTimeout(ctx, l.options.Patience)
	defer cancel()
	for {
		value, err := l.options.Records.Get(ctx, key)
		if err != nil {
			return Settlement{}, fmt.Errorf("read the entry of a reservation: %w", err)
		}
		if value == nil {
			return Settlement{}, ErrUnknown
		}
		e, err := decode(value)
		if err != nil {
			return Settlement{}, err
		}
		if err := admits(Reserved{e.Org, e.Tokens}); err != nil {
			return Settlement{}, err
		}
		if e.State == reserved {
			s, done, err := l.settle(ctx, key, value, e, actual)
			if done || err != nil {
				return s, err
			}
			continue // another request was faster
		}
		s, done, err := e.outcome(actual, l.options.Now())
		if done {
			return s, err
		}
		if err := pause(waiting); err != nil {
			return Settlement{}, err
		}
	}
}

// outcome returns what became of an entry that another request claims or settles, or has settled. It reports false
// while that request is underway.
func (e *entry) outcome(actual int64, now time.Time) (s Settlement, done bool, err error) {
	over := !e.isUnderway(now)
	switch {
	case e.State == claimed && over:
		return s, true, ErrUncertain
	case e.State == claimed:
		return s, false, nil
	case e.Actual != actual:
		return s, true, &ActualError{e.Actual}
	case e.State == settled:
		s = *e.Settlement
		s.Repeated = true
		return s, true, nil
	case over:
		return Settlement{Tokens: e.Tokens, Actual: actual, Unknown: true, Repeated: true}, true, nil
	}
	return s, false, nil
}

// settle settles an entry that is reserved, and reports whether it did: if not, another request was faster. An error
// means that nothing was settled.
func (l *Ledger) settle(
	ctx context.Context, key string, value []byte, e *entry, actual int64,
) (s Settlement, done bool, err error) {
	record, err := l.decodeRecord(e)
	if err != nil {
		return s, false, err
	}
	e.Actual = actual
	e.begin(settling, l.options.Now())
	began, err := e.encode()
	if err != nil {
		return s, false, err
	}
	if present, err := l.swap(ctx, key, value, began, 0); err != nil || !bytes.Equal(present, began) {
		return s, false, err
	}
	l.awaited.remove(key)
	ctx, cancel := finishing(ctx)
	defer cancel()
	s = l.apply(ctx, e, record)
	e.State, e.Nonce, e.Record, e.Rows, e.Settlement = settled, "", nil, nil, &s
	next, err := e.encode()
	if err == nil {
		_, err = l.swap(ctx, key, began, next, 0)
	}
	if err != nil {
		l.options.Log.Warn("a settlement was made and not recorded: repetitions answer that its outcome is unknown",
			"error", err)
	}
	return s, true, nil
}

// decodeRecord returns what the limits of an entry have reserved; nil: no limit settles.
func (l *Ledger) decodeRecord(e *entry) (*reservation.Record, error) {
	if e.Record == nil {
		return nil, nil
	}
	record := &reservation.Record{}
	unmarshal := record.UnmarshalBinary
	if l.options.Own {
		unmarshal = record.UnmarshalOwn
	}
	if err := unmarshal(e.Record); err != nil {
		return nil, fmt.Errorf("read a reservation: %w", err)
	}
	if len(e.Rows) != len(record.Bounds) {
		return nil, fmt.Errorf("read a reservation: %d rows for %d bounds", len(e.Rows), len(record.Bounds))
	}
	return record, nil
}

// apply changes the buckets of a reservation, and returns what became of it. It is called once for each reservation.
func (l *Ledger) apply(ctx context.Context, e *entry, record *reservation.Record) Settlement {
	s := Settlement{Tokens: e.Tokens, Actual: e.Actual, Late: e.Since >= e.Made+e.Timeout, Changes: []Change{}}
	if record == nil {
		return s
	}
	all := make([]reservation.Settlement, len(record.Bounds))
	for i := range all {
		all[i].Actual = e.Actual
		if s.Late {
			all[i].Outcome = reservation.Late
		}
	}
	if err := record.Settle(ctx, l.options.Buckets, all); err != nil {
		l.options.Log.Error("settling a reservation failed", "error", err)
	}
	for i := range all {
		b := &record.Bounds[i]
		s.Changes = append(s.Changes, Change{
			Policy: b.Policy.Name, Row: e.Rows[i], Endpoint: b.Key.Endpoint, Scope: b.Policy.Scope.String(),
			Change: all[i].Change, Lost: all[i].Outcome == reservation.Lost,
		})
	}
	delay := micros(e.Since - e.Made)
	if s.Late && !e.TimedOut {
		record.ReportUnsettled(l.options.Observer, reservation.TimedOut, delay)
	}
	record.ReportSettled(l.options.Observer, all, delay)
	return s
}
