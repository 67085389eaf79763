package reservation

import (
	"context"
	"errors"
	"time"
)

// Records keeps records in a store that all processes share, each under a key. It must be safe for concurrent use, and
// bound the time of its calls. A call is made once: if its outcome is unknown, [MayHaveRun] reports true for its error.
type Records interface {
	// Add keeps a record for ttl. If there is one under the key already, Add changes nothing and returns that one.
	Add(ctx context.Context, key string, record []byte, ttl time.Duration) (present []byte, err error)
	// Get returns the record of a key, or nil.
	Get(ctx context.Context, key string) ([]byte, error)
	// Swap replaces the record of a key, if it is the old one, and reports whether it did. The TTL stays.
	Swap(ctx context.Context, key string, old, next []byte) (bool, error)
	// Take deletes the record of a key and returns it, or nil. Of all callers one at most gets it.
	Take(ctx context.Context, key string) ([]byte, error)
}

// Claims keeps records of which one claimant can have each. To the methods of Records a claimed record is gone.
type Claims interface {
	Records
	// Claim claims the record of a key and returns it. For 30 seconds and more, it returns the record to the same
	// claimant again, and taken to all others. It returns neither where there is no record and no claim.
	Claim(ctx context.Context, key, claimant string) (record []byte, taken bool, err error)
	// ClaimOwn is Claim for a claimant that has the record, so that the store need not keep it: won says that it is the
	// claimant's.
	ClaimOwn(ctx context.Context, key, claimant string) (won, taken bool, err error)
}

// MayHaveRun reports whether a call of Records may have done its work in spite of its error, or may still do it.
func MayHaveRun(err error) bool {
	var certain interface{ MayHaveRun() bool }
	return err != nil && (!errors.As(err, &certain) || certain.MayHaveRun())
}
