// Package await waits in tests until a condition holds.
package await

import (
	"errors"
	"testing"
	"time"
)

// Longest is how long a condition may take, on a busy machine too.
const Longest = 3 * time.Minute

// That returns as soon as holds returns true, and fails the test after Longest. It calls holds in the test's goroutine.
func That(t testing.TB, what string, holds func() bool) {
	t.Helper()
	NoError(t, what, func() error {
		if holds() {
			return nil
		}
		return errFalse
	})
}

var errFalse = errors.New("the condition does not hold")

// NoError returns as soon as do returns nil, and fails the test with the last error after Longest.
func NoError(t testing.TB, what string, do func() error) {
	t.Helper()
	deadline := time.Now().Add(Longest)
	for pause := time.Millisecond; ; pause = min(pause*5/4, 50*time.Millisecond) {
		err := do()
		switch {
		case err == nil:
			return
		case time.Now().After(deadline):
			t.Fatalf("%s: not within %v: %v", what, Longest, err)
		}
		time.Sleep(pause)
	}
}
