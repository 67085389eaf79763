// Package leaktest ends a package's tests with the question whether a goroutine outlived them.
//
// It is goleak with more patience: goleak looks for less than half a second, and a client of Redis that found no
// server sleeps for a second at a time before it sees that it was closed.
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
const patience = 10 * time.Second

// Main runs the tests of a package, then ends, in whatever state they were left, and ends the process: with a failure
// if one of ends fails, or if the tests succeeded and a goroutine is left ten seconds later.
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

// find returns an error that shows the goroutines that are still there when patience is over, nil if there are none.
func find(patience time.Duration) error {
	deadline := time.Now().Add(patience)
	for {
		err := goleak.Find()
		if err == nil || time.Now().After(deadline) {
			return err
		}
	}
}
