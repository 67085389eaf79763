package redistest

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Clocked is one Redis without persistence whose clock can be stepped. Only the time of day is turned (TIME in a
// script, and when keys expire), not the clock that its event loop waits by.
type Clocked struct {
	*Server

	file string // read by every look at the clock
}

// SingleClocked starts one Redis with the clock of the machine, until Step turns it. Reading the clock costs it more
// than it does other servers. args are as for [Single].
func SingleClocked(t testing.TB, args ...string) *Clocked {
	t.Helper()
	library, err := faketime()
	if err != nil {
		t.Fatal(err)
	}
	c := &Clocked{file: filepath.Join(folder(t), "clock")}
	c.Step(t, 0)
	// The library reads its file within a look at the clock and allocates memory for that; Redis's own allocator looks at
	// the clock when it is asked for memory. So memory comes from libc.
	c.Server = start(t, launch{args: single(args), environment: []string{
		"LD_PRELOAD=" + library + ":libc.so.6",
		"FAKETIME_TIMESTAMP_FILE=" + c.file,
		"FAKETIME_NO_CACHE=1",
		"FAKETIME_DONT_FAKE_MONOTONIC=1",
	}})
	return c
}

// Step turns the clock, at once, to the machine's and by more: 0 is the machine's own, a negative one is in the past.
func (c *Clocked) Step(t testing.TB, by time.Duration) {
	t.Helper()
	next := c.file + ".next"
	if err := os.WriteFile(next, fmt.Appendf(nil, "%+f\n", by.Seconds()), 0o600); err != nil {
		t.Fatalf("step the clock: %v", err)
	}
	if err := os.Rename(next, c.file); err != nil { // never half written
		t.Fatalf("step the clock: %v", err)
	}
}
