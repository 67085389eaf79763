package redis

import "time"

// Gate admits calls to a server. It can hold back calls to one that has failed lately, so that no request waits for it.
type Gate interface {
	// Enter reports whether one call may be sent, and if not, how long a retry is pointless. Each Enter that returns true
	// is followed by one Leave or one Abandon.
	Enter() (wait time.Duration, ok bool)
	// Leave ends a call that the server answered, or that failed: how long it took, and whether its error is the server's
	// fault.
	Leave(took time.Duration, failed bool)
	// Abandon ends a call whose caller had no more time after it took so long. An answer may still come. A hung server
	// ends calls only this way.
	Abandon(took time.Duration)
	// Close ends the gate: the store uses the server no more. It may be called twice.
	Close()
}

// NewGate returns the gate of a server. Both names are for people: the store's as [Store.Name] has it, and the
// server's. A call takes no longer than timeout.
type NewGate func(store, server string, timeout time.Duration) Gate

// openGate admits every call.
type openGate struct{}

func (openGate) Enter() (time.Duration, bool) { return 0, true }
func (openGate) Leave(time.Duration, bool)    {}
func (openGate) Abandon(time.Duration)        {}
func (openGate) Close()                       {}

// runBehind makes a call if a gate admits it.
func runBehind(g Gate, call func() error) (err error) {
	wait, ok := g.Enter()
	if !ok {
		return &Error{Kind: NotSent, Wait: wait, err: errGate}
	}
	began, ended := time.Now(), false
	defer func() {
		if took := time.Since(began); !ended || callerTimedOut(err) {
			g.Abandon(took)
		} else {
			g.Leave(took, isServerFault(err))
		}
	}()
	err = call()
	ended = true
	return err
}
