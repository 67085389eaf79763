package redisstore

import "time"

// Gate stands before a server. One that has failed lately can be left alone, so that nobody waits for it.
type Gate interface {
	// Enter asks leave for one call. If it is refused nothing is sent, and it is not worth asking again before wait has
	// passed. Each Enter that is granted is followed by one Leave.
	Enter() (wait time.Duration, ok bool)
	// Leave tells how long the call took, and whether its error speaks against the server. A server that hangs is known by
	// took alone.
	Leave(took time.Duration, failed bool)
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
func (openGate) Close()                       {}

var noGates Gates = func(string, string, time.Duration) Gate { return openGate{} }
