// Package leaktest fails the tests of a package if a goroutine outlives them.
//
// It waits longer than goleak, which waits for less than half a second. A closed client of Redis that had no server
// ends only after a sleep of a second.
package leaktest

import (
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// patience bounds the time that goroutines closed by a test may take to end.
const patience = time.Minute

// Main runs the tests of a package, then ends, and exits. The exit code is a failure if one of ends fails, or if the
// tests succeeded and a goroutine still runs a minute later.
func Main(m *testing.M, ends ...func() error) {
	code := m.Run()
	var err error
	for _, end := range ends {
		err = errors.Join(err, end())
	}
	if err == nil && code == 0 {
		err = find(patience)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "after the tests:", err)
		code = 1
	}
	os.Exit(code)
}

// find returns an error with the goroutines that still run when patience is over, or nil.
func find(patience time.Duration) error {
	deadline := time.Now().Add(patience)
	for {
		err := goleak.Find()
		if err == nil || time.Now().After(deadline) {
			return err
		}
	}
}
