package redistest

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Clocked is one Redis without persistence whose clock can be stepped. Step changes the time of day (TIME in a script,
// and the expiry of keys), but not the monotonic clock of its event loop.
type Clocked struct {
	*Server

	file string // Redis reads it with the clock
}

// SingleClocked starts one Redis with the clock of the machine, until Step changes it. Reading the clock is slower than
// in other servers. args are as for [Single].
func SingleClocked(t testing.TB, args ...string) *Clocked {
	t.Helper()
	library, err := faketime()
	require.NoError(t, err)
	c := &Clocked{file: filepath.Join(folder(t), "clock")}
	c.Step(t, 0)
	// The library allocates memory when the clock is read. Redis's allocator reads the clock when it allocates memory.
	// libc does not, so memory comes from libc.
	c.Server = start(t, launch{args: single(args), environment: []string{
		"LD_PRELOAD=" + library + ":libc.so.6",
		"FAKETIME_TIMESTAMP_FILE=" + c.file,
		"FAKETIME_NO_CACHE=1",
		"FAKETIME_DONT_FAKE_MONOTONIC=1",
	}})
	return c
}

// Step sets the clock, at once, to that of the machine plus by, which may be negative.
func (c *Clocked) Step(t testing.TB, by time.Duration) {
	t.Helper()
	next := c.file + ".next"
	require.NoError(t, os.WriteFile(next, fmt.Appendf(nil, "%+f\n", by.Seconds()), 0o600), "step the clock")
	require.NoError(t, os.Rename(next, c.file), "step the clock")
}
