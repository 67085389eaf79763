package redis

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/decision"
)

// Kind is what is known of a script whose reply did not come.
type Kind uint8

// The kinds. The zero value claims nothing.
const (
	// Unknown: the script may have run, or may still run. Its reply was late or the connection broke after sending.
	Unknown Kind = iota
	// NotSent: the script did not leave this process. There was no connection, no free one in time, or a full queue.
	NotSent
	// Refused: Redis, or the start-up check of it, said no. The script did not run.
	Refused
)

func (k Kind) String() string { return [...]string{"outcome unknown", "not sent", "refused"}[k] }

// Error is a script that has no reply. It wraps the cause, whose text never holds a secret.
type Error struct {
	Kind Kind
	Wait time.Duration // how long it is not worth asking again, where that is known
	err  error
}

// errUnknown is what an Error of kind Unknown is, for errors.Is.
var errUnknown = errors.New("the outcome is unknown")

// errGate is what stands for a server's reply while its gate is shut.
var errGate = errors.New("the server failed recently: not retried yet")

// errUnfinished is the error of a call as long as it runs, and so that of one that panics.
var errUnfinished = errors.New("the call has not ended")

func (e *Error) Error() string { return "redis: " + e.Kind.String() + ": " + e.err.Error() }

// Unwrap is the cause, as go-redis, the network or the context put it.
func (e *Error) Unwrap() error { return e.err }

// Is tells errors.Is that an Error of kind Unknown is errUnknown.
func (e *Error) Is(target error) bool { return target == errUnknown && e.Kind == Unknown }

// dialError is a connection that could not be opened. Nothing was sent over it.
type dialError struct {
	address string
	err     error
}

func (e *dialError) Error() string { return "connect to " + e.address + ": " + e.err.Error() }
func (e *dialError) Unwrap() error { return e.err }

// unsent are the errors of go-redis that come before a command is written.
var unsent = []error{redis.ErrClosed, redis.ErrPoolTimeout, redis.ErrPoolExhausted, redis.ErrAutoPipelineQueueFull}

// unsentText begins the one error of that sort that go-redis exports no value for.
const unsentText = "redis: all sentinels specified in configuration are unreachable"

// refusals begin the replies with which Redis turns a script away before its first write. What a script reports later
// is not among them: it may have written by then.
var refusals = []string{
	"NOSCRIPT ", "MOVED ", "ASK ", "TRYAGAIN ", "CLUSTERDOWN ", "CROSSSLOT ", // wrong place
	"LOADING ", "MASTERDOWN ", "READONLY ", "NOREPLICAS ", "OOM ", "MISCONF ", "BUSY ", // cannot now
	"NOAUTH ", "WRONGPASS ", "NOPERM ", "DENIED ", "ERR max number of clients reached", // may not
	"ERR DB index ", "ERR AUTH ", "ERR Client sent AUTH", // on a new connection, before anything else
}

// scriptFailed begins the reply of a Redis before 7 to a script that a command has ended. It names that command's own
// error behind scriptCause: "ERR Error running script (call to f_<sha>): @user_script:12: -OOM command not allowed …".
const (
	scriptFailed = "ERR Error running script "
	scriptCause  = ": -"
)

// beforeWriting begin the errors that a script's first write can meet and a later one cannot: Redis looks for them
// while nothing is written yet, or they do not change while a script runs.
var beforeWriting = []string{"LOADING ", "MASTERDOWN ", "READONLY ", "NOREPLICAS ", "OOM ", "MISCONF ", "CLUSTERDOWN "}

// isRefusal reports whether a reply of Redis says that the script has written nothing.
func isRefusal(reply string) bool {
	hasPrefix := func(prefix string) bool { return strings.HasPrefix(reply, prefix) }
	if !hasPrefix(scriptFailed) {
		return slices.ContainsFunc(refusals, hasPrefix)
	}
	_, reply, _ = strings.Cut(reply, scriptCause)
	return slices.ContainsFunc(beforeWriting, hasPrefix)
}

// classify wraps the error of a command in an Error. Where nothing is certain the kind is Unknown.
func classify(err error) *Error {
	var known *Error
	if errors.As(err, &known) {
		return known
	}
	return &Error{Kind: kindOf(err), err: err}
}

func kindOf(err error) Kind {
	var dial *dialError
	if errors.As(err, &dial) || strings.HasPrefix(err.Error(), unsentText) {
		return NotSent
	}
	for _, e := range unsent {
		if errors.Is(err, e) {
			return NotSent
		}
	}
	var reply redis.Error
	if errors.As(err, &reply) && isRefusal(reply.Error()) {
		return Refused
	}
	return Unknown
}

// failure is what an error of a call means for the bounds of its request.
func failure(err error) decision.Failure {
	var known *Error
	var timeout net.Error
	switch {
	case errors.As(err, &known) && known.Kind != Unknown:
		return decision.Unavailable
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled), errors.As(err, &timeout) && timeout.Timeout():
		return decision.TimedOut
	default:
		return decision.Lost
	}
}

// elsewhere begin the replies of a server that is well, and has nothing to do with the key, or not all of it yet, or keeps
// something of somebody else's there.
var elsewhere = []string{"NOSCRIPT ", "MOVED ", "ASK ", "TRYAGAIN ", "CROSSSLOT ", "WRONGTYPE "}

// turnsAway tells whether an error is the reply of a server that lives, and does not do what it is asked.
func turnsAway(err error) bool {
	var reply redis.Error
	return errors.As(err, &reply) && ails(err)
}

// ails tells whether an error speaks against the server that it came from. That a caller had no more time does not: see
// [gaveUp].
func ails(err error) bool {
	if err == nil || gaveUp(err) {
		return false
	}
	var reply redis.Error
	return !errors.As(err, &reply) ||
		!slices.ContainsFunc(elsewhere, func(prefix string) bool { return strings.HasPrefix(reply.Error(), prefix) })
}

// gaveUp reports whether a call ended because its caller had no more time, so that no answer was seen. A connection
// that could not be opened in time speaks against the server.
func gaveUp(err error) bool {
	var dial *dialError
	var timeout net.Error
	switch {
	case err == nil, errors.As(err, &dial):
		return false
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return true
	}
	return errors.As(err, &timeout) && timeout.Timeout()
}
