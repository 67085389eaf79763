package named

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
)

// Name identifies a reservation.
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

// entry is the record of an id, as JSON.
type entry struct {
	State   state  `json:"state"`
	Request []byte `json:"request"`         // hash of the check
	Nonce   string `json:"nonce,omitempty"` // of the attempt that wrote a state that others wait for
	Since   int64  `json:"since,omitempty"` // when that attempt began, in milliseconds of Unix time

	Org     string          `json:"org,omitempty"` // that the check was billed to
	Tokens  int64           `json:"tokens"`        // that were reserved
	Made    int64           `json:"made"`          // in milliseconds of Unix time
	Timeout int64           `json:"timeout"`       // in milliseconds
	Answer  json.RawMessage `json:"answer,omitempty"`
	Record  json.RawMessage `json:"record,omitempty"` // what the limits have reserved; nil: no limit settles
	Rows    []int64         `json:"rows,omitempty"`   // of their policies in the database; 0: of the config

	TimedOut   bool        `json:"timed_out,omitempty"` // which was reported
	Actual     int64       `json:"actual,omitempty"`
	Settlement *Settlement `json:"settlement,omitempty"`
}

// maxAttempt bounds how long an attempt may take. The process of an older one has ended.
const maxAttempt = 30 * time.Second

// decode reads an entry.
func decode(value []byte) (*entry, error) {
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

// encode returns an entry as it is kept.
func (e *entry) encode() ([]byte, error) {
	value, err := json.Marshal(e)
	if err != nil {
		return nil, fmt.Errorf("write the entry of a reservation: %w", err)
	}
	return value, nil
}

// begin begins an attempt, in a state for whose end other requests wait.
func (e *entry) begin(s state, now time.Time) {
	e.State, e.Nonce, e.Since = s, rand.Text(), now.UnixMilli()
}

// isUnderway reports whether the attempt that wrote the entry may still be running.
func (e *entry) isUnderway(now time.Time) bool {
	return now.UnixMilli()-e.Since < maxAttempt.Milliseconds()
}

// micros returns milliseconds as Micros.
func micros(milliseconds int64) limit.Micros {
	return limit.Micros(milliseconds) * (limit.Second / 1000)
}
