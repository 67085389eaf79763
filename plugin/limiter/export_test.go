package limiter

import (
	"testing"
	"time"
)

// WaitForRows makes New wait for the rows of a database until wait is over, in place of a second, until the test ends.
func WaitForRows(t testing.TB, wait time.Duration) {
	before := rowsWait
	rowsWait = wait
	t.Cleanup(func() { rowsWait = before })
}
