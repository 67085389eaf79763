package limiter

import (
	"slices"
	"testing"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket"
)

// WaitForRows makes New wait for the rows of a database until wait is over, in place of a second, until the test ends.
func WaitForRows(t testing.TB, wait time.Duration) {
	before := rowsWait
	rowsWait = wait
	t.Cleanup(func() { rowsWait = before })
}

// LostLeases reports whether leases have ended with tokens unspent, or the answer to a renewal was late.
func (l *Limiter) LostLeases() bool {
	return slices.ContainsFunc(l.engine.Stores.Stats(), func(s bucket.Stats) bool {
		return s.Lease.Failed > 0 || s.Lease.Tokens.Expired > 0
	})
}
