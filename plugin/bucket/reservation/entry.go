package reservation

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
)

// Name identifies a reservation that a caller makes.
type Name struct {
	Namespace string // of the buckets
	Org       string // whose token chose the id; "": an operator's
	ID        string
}

// key returns where the entry of a name is kept. It is a hash: ids may have any characters, and no two names have one
// key.
func (n Name) key() string {
	hash := sha256.New()
	for _, part := range [...]string{n.Namespace, n.Org, n.ID} {
		fmt.Fprintf(hash, "%d:%s", len(part), part)
	}
	const size = 20 // bytes
	return "named:" + hex.EncodeToString(hash.Sum(nil)[:size])
}

// state says how far an entry has come.
type state string

const (
	claimed  state = "claimed"  // a process decides about the check; since says when it began
	reserved state = "reserved" // the check was admitted
	settling state = "settling" // a settlement changes buckets; since says when it began
	settled  state = "settled"
)

// entry is what the records keep of a name, as JSON. Instants are in milliseconds of Unix time.
type entry struct {
	State   state  `json:"state"`
	Request []byte `json:"request"`         // hash of the check
	Nonce   string `json:"nonce,omitempty"` // of the attempt that wrote a state that others wait for
	Since   int64  `json:"since,omitempty"` // when that attempt began

	Org     string          `json:"org,omitempty"` // that the check was billed to
	Tokens  int64           `json:"tokens"`        // that were reserved
	Made    int64           `json:"made"`
	Timeout int64           `json:"timeout"` // in milliseconds
	Answer  json.RawMessage `json:"answer,omitempty"`
	Record  json.RawMessage `json:"record,omitempty"` // what the limits have reserved; nil: no limit settles
	Rows    []int64         `json:"rows,omitempty"`   // of their policies in the database; 0: of the config

	TimedOut bool `json:"timed_out,omitempty"` // which was reported
	Use
	Settlement *Settled `json:"settlement,omitempty"`
}

// maxAttempt bounds how long an attempt may take. The process of an older one has ended.
const maxAttempt = 30 * time.Second

func decodeEntry(value []byte) (*entry, error) {
	e := &entry{}
	if err := json.Unmarshal(value, e); err != nil {
		return nil, fmt.Errorf("read the entry of a reservation: %w", err)
	}
	switch {
	case e.State == claimed, e.State == reserved, e.State == settling, e.State == settled && e.Settlement != nil:
		return e, nil
	}
	return nil, fmt.Errorf("read the entry of a reservation: it is incomplete, in the state %q", e.State)
}

// encode returns an entry as it is kept. It panics if the answer is no JSON.
func (e *entry) encode() []byte {
	value, err := json.Marshal(e)
	if err != nil {
		panic(fmt.Sprintf("reservation: an entry cannot be encoded: %v", err))
	}
	return value
}

// begin begins an attempt, in a state for whose end other requests wait, and returns the entry as it is kept.
func (e *entry) begin(s state, now int64) []byte {
	e.State, e.Nonce, e.Since = s, rand.Text(), now
	return e.encode()
}

// isUnderway reports whether the attempt that wrote the entry may still be running.
func (e *entry) isUnderway(now int64) bool { return now-e.Since < maxAttempt.Milliseconds() }

// decodeRecord returns what the limits of an entry have reserved; nil: no limit settles. own reports that records and
// buckets are in this process alone, so that it can return tokens to all bounds.
func (e *entry) decodeRecord(own bool) (*Record, error) {
	if e.Record == nil {
		return nil, nil
	}
	record, err := decodeRecord(e.Record, own)
	if err != nil {
		return nil, err
	}
	if len(e.Rows) != len(record.Bounds) {
		return nil, fmt.Errorf("decode a reservation: %d rows for %d bounds", len(e.Rows), len(record.Bounds))
	}
	return record, nil
}

// outcome returns what became of an entry that another request claims or settles, or has settled. It reports false
// while that request is underway.
func (e *entry) outcome(use Use, now int64) (s Settled, done bool, err error) {
	over := !e.isUnderway(now)
	switch {
	case e.State == claimed && over:
		return s, true, ErrUncertain
	case e.State == claimed:
		return s, false, nil
	case e.Use != use:
		return s, true, &UseError{e.Use}
	case e.State == settled:
		s = *e.Settlement
		s.Repeated = true
		return s, true, nil
	case over:
		return Settled{Tokens: e.Tokens, Actual: use.Actual, Unknown: true, Repeated: true}, true, nil
	}
	return s, false, nil
}

const millisecond = limit.Second / 1000

// isLate reports whether the timeout was over when the settlement began.
func (e *entry) isLate() bool { return e.Since >= e.Made+e.Timeout }

// delay returns how long the reservation was kept, when its settlement began.
func (e *entry) delay() limit.Micros { return limit.Micros(e.Since-e.Made) * millisecond }
