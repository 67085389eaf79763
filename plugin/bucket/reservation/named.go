package reservation

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
)

// Errors of Claim and of a settlement by name, beside [UseError]. Any other error means that the records could not
// be read or written, and that nothing was charged or settled.
var (
	ErrUnknown  = errors.New("there is no reservation with this id")
	ErrReused   = errors.New("the id was used for another request")
	ErrUnderway = errors.New("the first request with this id is still in progress")
	// ErrUncertain means that a process ended while it decided about the check: it is unknown whether it charged.
	ErrUncertain = errors.New("the outcome of the first request with this id is unknown")
	// ErrUsed means that limits of tokens and of money have reserved, and that the use names no call.
	ErrUsed = errors.New("the use must name a call: limits of two units have reserved")
	// ErrFull means that there is no room for another record.
	ErrFull error = fullError{}
)

const (
	pollInterval  = 20 * time.Millisecond // of an entry that another request is about to change
	finishTimeout = 3 * time.Second       // of a change that was begun, also for a client that has disconnected
)

// finishing returns a context for a change that was begun, and must not end with its request.
func finishing(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), finishTimeout)
}

// pause waits before the next look at an entry that another request changes. It returns ErrUnderway if ctx ends.
func pause(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ErrUnderway
	case <-time.After(pollInterval):
		return nil
	}
}

// millis returns the time by the wall clock, in milliseconds of Unix time.
func (l *Ledger) millis() int64 { return int64(l.options.Now() / millisecond) }

// swap replaces a value, if it is the old one, and returns the value that is there then. If the outcome is unknown it
// looks at the value.
func (k *Keeper) swap(
	ctx context.Context, key string, old, next []byte, ttl time.Duration,
) (present []byte, err error) {
	present, err = k.records.Swap(ctx, key, old, next, ttl)
	if MayHaveRun(err) {
		if now, failed := k.records.Get(ctx, key); failed == nil && !bytes.Equal(now, old) {
			return now, nil
		} // else the change may still arrive
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("change the entry of a reservation: %w", err)
	case bytes.Equal(present, old):
		return next, nil
	}
	return present, nil
}

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
	keeper *Keeper
	key    string
	entry  *entry
	value  []byte // as it is kept
}

// Claim returns the claim of a request; or, if a request with that name was admitted already, the answer that it got.
// It waits a moment for a request that is still being decided.
func (k *Keeper) Claim(ctx context.Context, r *Request) (*Claim, json.RawMessage, error) {
	now := k.ledger.millis()
	e := &entry{Request: r.Hash, Org: r.Org, Tokens: r.Tokens, Timeout: r.Timeout.Milliseconds(), Made: now}
	c := &Claim{k, r.Name.key(), e, e.begin(claimed, now)}
	waiting, cancel := context.WithTimeout(ctx, k.ledger.options.Patience)
	defer cancel()
	for {
		present, err := k.swap(ctx, c.key, nil, c.value, 2*r.Timeout)
		switch {
		case err != nil:
			if MayHaveRun(err) {
				k.ledger.doubt(c)
			}
			return nil, nil, err
		case bytes.Equal(present, c.value):
			return c, nil, nil
		}
		first, err := decodeEntry(present)
		switch {
		case err != nil:
			return nil, nil, err
		case !bytes.Equal(first.Request, r.Hash):
			return nil, nil, ErrReused
		case first.State != claimed:
			return nil, first.Answer, nil
		case !first.isUnderway(k.ledger.millis()):
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
func (c *Claim) Keep(ctx context.Context, record *Record, answer json.RawMessage) error {
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
	next := e.encode()
	switch present, err := c.keeper.swap(ctx, c.key, c.value, next, 0); {
	case err != nil:
		return err
	case !bytes.Equal(present, next):
		return fmt.Errorf("keep a reservation: %w", ErrUncertain)
	case record != nil && c.keeper.use():
		timeout := limit.Micros(e.Timeout) * millisecond
		r := &reservation{Record: &Record{Timeout: timeout}, key: c.key, keeper: c.keeper, named: true}
		r.slots = record.Slots()
		c.keeper.ledger.add(r)
		record.ReportReserved(c.keeper.ledger.options.Observer)
	}
	return nil
}

// Release ends the claim of a check that reserved nothing: its id is free again. If that fails, it is free once the
// entry ends.
func (c *Claim) Release(ctx context.Context) {
	ctx, cancel := finishing(ctx)
	defer cancel()
	if _, err := c.delete(ctx); err != nil {
		c.keeper.ledger.options.Log.Warn("releasing the id of a reservation failed: it is in use until its timeout",
			"error", err)
	}
}

// delete deletes the entry of a claim, and reports whether it was there.
func (c *Claim) delete(ctx context.Context) (bool, error) {
	present, err := c.keeper.records.Swap(ctx, c.key, c.value, nil, 0)
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
		if !ok && c.entry.isUnderway(l.millis()) {
			l.doubt(c)
		}
	}
}

// expireNamed reports that a named reservation has timed out, unless it was settled or that was reported. Its entry
// stays, for a late settlement. It logs an entry that it cannot decode. An error means that the records could not be
// read or written.
func (k *Keeper) expireNamed(ctx context.Context, key string) error {
	value, err := k.records.Get(ctx, key)
	if err != nil || value == nil {
		return err
	}
	var record *Record
	e, err := decodeEntry(value)
	if err == nil {
		record, err = e.decodeRecord(k.central == nil)
	}
	switch {
	case err != nil:
		k.ledger.options.Log.Warn("decoding a reservation that timed out failed: it is not counted as timed out",
			"error", err)
		return nil
	case e.State != reserved || record == nil || e.TimedOut:
		return nil
	}
	e.TimedOut = true
	next := e.encode()
	present, err := k.swap(ctx, key, value, next, 0)
	if err == nil && bytes.Equal(present, next) {
		record.ReportUnsettled(k.ledger.options.Observer, TimedOut, limit.Micros(e.Timeout)*millisecond)
	}
	return err
}

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
	Change   int64  `json:"change"`         // tokens that the bucket got back (< 0), or was charged (> 0)
	Unit     string `json:"unit,omitempty"` // of Change
	Lost     bool   `json:"lost,omitempty"`
	Unpriced bool   `json:"unpriced,omitempty"` // the model has no price: the reservation stays
}

// Use says what the request of a named reservation has used. Two uses are compared by ==.
type Use struct {
	Actual int64 `json:"actual,omitempty"` // tokens; of limits in money millionths of a US dollar, unless there is a call
	Call   Used  `json:"used,omitzero"`    // the zero value: none
}

// Used is the call of a language model.
type Used struct {
	Model      string `json:"model"              doc:"The model that has answered."                minLength:"1" maxLength:"256"          example:"gpt-4o"`
	Provider   string `json:"provider,omitempty" doc:"Its provider, for limits that match it."                   maxLength:"256"          example:"openai"`
	Prompt     int64  `json:"prompt_tokens"                                                        minimum:"0"   maximum:"1000000000000" example:"300"`
	Completion int64  `json:"completion_tokens"                                                    minimum:"0"   maximum:"1000000000000" example:"120"`
}

func (u Use) String() string {
	if c := u.Call; c != (Used{}) {
		return fmt.Sprintf("%d tokens, with %d in and %d out of %q", u.Actual, c.Prompt, c.Completion, c.Model)
	}
	return fmt.Sprintf("%d tokens", u.Actual)
}

// UseError is the error of a settlement that names another use than the first one.
type UseError struct{ First Use }

func (e *UseError) Error() string {
	return fmt.Sprintf("the reservation was settled to %s already", e.First)
}

// Settle replaces a reservation by what was really used, once. A repetition returns the first settlement. admits is
// called before anything changes, with the org that it is billed to, and with what a limit that would get tokens back
// must be charged at least; "": none would. Its error, if any, is returned, and nothing is settled.
func (k *Keeper) Settle(
	ctx context.Context, n Name, use Use, admits func(org, least string) error,
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
		var done bool
		if e.State == reserved {
			s, done, err = k.settle(ctx, key, value, e, use, admits)
		} else if err = admits(e.Org, ""); err == nil {
			s, done, err = e.outcome(use, k.ledger.millis())
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
	ctx context.Context, key string, value []byte, e *entry, use Use, admits func(org, least string) error,
) (s Settled, done bool, err error) {
	record, err := e.decodeRecord(k.central == nil)
	if err != nil {
		return s, false, err
	}
	e.Use = use
	began := e.begin(settling, k.ledger.millis())
	all, unsettled := record.SettlementsOf(&use, e.isLate())
	if err := admits(e.Org, record.least(all)); err != nil {
		return s, false, err
	}
	if unsettled != nil {
		return s, false, unsettled
	}
	if present, err := k.swap(ctx, key, value, began, 0); err != nil || !bytes.Equal(present, began) {
		return s, false, err
	}
	if r := k.ledger.take(key); r != nil {
		r.keeper.done()
	}
	ctx, cancel := finishing(ctx)
	defer cancel()
	s = k.apply(ctx, e, record, all)
	e.State, e.Nonce, e.Record, e.Rows, e.Settlement = settled, "", nil, nil, &s
	if _, err := k.swap(ctx, key, began, e.encode(), 0); err != nil {
		k.ledger.options.Log.Warn("a settlement was made and not recorded: repetitions answer that its outcome is unknown",
			"error", err)
	}
	return s, true, nil
}

// apply changes the buckets of a reservation, and returns what became of it. It is called once for each reservation.
func (k *Keeper) apply(ctx context.Context, e *entry, record *Record, all []Settlement) Settled {
	s := Settled{Tokens: e.Tokens, Actual: e.Actual, Late: e.isLate(), Changes: []Change{}}
	if record == nil {
		return s
	}
	if err := record.Settle(ctx, k.buckets, all); err != nil {
		k.ledger.options.Log.Error("settling a reservation failed", "error", err)
	}
	for i := range all {
		b := &record.Bounds[i]
		s.Changes = append(s.Changes, Change{
			Policy: b.Policy.Name, Row: e.Rows[i], Endpoint: b.Key.Endpoint, Scope: b.Policy.Scope.String(),
			Change: all[i].Change, Unit: b.Policy.Unit, Lost: all[i].Outcome == Lost, Unpriced: all[i].Outcome == Unmeasured,
		})
	}
	if s.Late && !e.TimedOut {
		record.ReportUnsettled(k.ledger.options.Observer, TimedOut, e.delay())
	}
	record.ReportSettled(k.ledger.options.Observer, all, e.delay())
	return s
}
