// Package leaktest ends a package's tests with the question whether a goroutine outlived them.
//
// It is goleak with more patience: goleak looks for less than half a second, and a client of Redis that found no
// server sleeps for a second at a time before it sees that it was closed.
package leaktest

import (
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// patience is how long what a test closed may take to end.
const patience = 10 * time.Second

// Main runs the tests of a package and ends the process, with a failure if a goroutine is left.
func Main(m *testing.M) {
	code := m.Run()
	if code == 0 {
		if err := Find(); err != nil {
			fmt.Fprintln(os.Stderr, "after the tests:", err)
			code = 1
		}
	}
	os.Exit(code)
}

// Find returns an error that shows the goroutines that are still there after ten seconds, nil if there are none.
func Find() error { return find(patience) }

func find(patience time.Duration) error {
	deadline := time.Now().Add(patience)
	for {
		err := goleak.Find()
		if err == nil || time.Now().After(deadline) {
			return err
		}
	}
}
