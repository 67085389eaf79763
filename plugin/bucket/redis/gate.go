package redis

import (
	"errors"
	"time"
)

// Gate stands before a server. One that has failed lately can be left alone, so that nobody waits for it.
type Gate interface {
	// Enter asks leave for one call. If it is refused nothing is sent, and it is not worth asking again before wait has
	// passed. Each Enter that is granted is followed by one Leave or one Abandon.
	Enter() (wait time.Duration, ok bool)
	// Leave ends a call that the server answered, or that failed: how long it took, and whether its error speaks against
	// the server.
	Leave(took time.Duration, failed bool)
	// Abandon ends a call whose caller had no more time after it took so long: there was no answer until then, and there
	// may be one later. A server that hangs is known by that alone.
	Abandon(took time.Duration)
	// Close tells that the server is not one of the store's any more. It may be told so twice.
	Close()
}

// Gates makes the gate of a server. Both names are for people: the store's as [Store.Name] has it, and the server's. A call
// takes no longer than timeout.
type Gates func(store, server string, timeout time.Duration) Gate

// openGate lets everything through.
type openGate struct{}

func (openGate) Enter() (time.Duration, bool) { return 0, true }
func (openGate) Leave(time.Duration, bool)    {}
func (openGate) Abandon(time.Duration)        {}
func (openGate) Close()                       {}

// leave ends a call that a gate let through, by its error.
func leave(g Gate, began time.Time, err *error) {
	if took := time.Since(began); errors.Is(*err, errUnfinished) || gaveUp(*err) {
		g.Abandon(took)
	} else {
		g.Leave(took, ails(*err))
	}
}

var noGates Gates = func(string, string, time.Duration) Gate { return openGate{} }
