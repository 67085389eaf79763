package redis

import (
	"context"
	"errors"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
)

// Kind classifies a call whose reply did not come, by what it may have done.
type Kind uint8

// The kinds. The zero value is the one that excludes nothing.
const (
	// Unknown: the script may have run, or may still run. Its reply was late or the connection broke after sending.
	Unknown Kind = iota
	// NotSent: the script did not leave this process. There was no connection, no free one in time, or a full queue.
	NotSent
	// Rejected: Redis, or the check of it, returned an error before the script ran.
	Rejected
)

func (k Kind) String() string { return [...]string{"outcome unknown", "not sent", "rejected"}[k] }

// Error reports a script without a reply. It wraps the cause, whose text never holds a secret.
type Error struct {
	Kind Kind
	Wait time.Duration // how long a retry is pointless, or 0
	err  error
}

// errGate is the cause of a call that a gate has held back.
var errGate = errors.New("the server failed recently: not retried yet")

func (e *Error) Error() string { return "redis: " + e.Kind.String() + ": " + e.err.Error() }

// Unwrap returns the error of go-redis, the network or the context.
func (e *Error) Unwrap() error { return e.err }

// MayHaveRun reports whether the script may have run all the same.
func (e *Error) MayHaveRun() bool { return e.Kind == Unknown }

// dialError reports a connection that could not be opened. Nothing was sent over it.
type dialError struct {
	address string
	err     error
}

func (e *dialError) Error() string { return "connect to " + e.address + ": " + e.err.Error() }
func (e *dialError) Unwrap() error { return e.err }

// rejections holds how errors begin that Redis returns before a script's first write. What a script reports later is
// not among them, because it may have written by then.
var rejections = []string{
	"NOSCRIPT ", "MOVED ", "ASK ", "TRYAGAIN ", "CLUSTERDOWN ", "CROSSSLOT ", // wrong place
	"LOADING ", "MASTERDOWN ", "READONLY ", "NOREPLICAS ", "OOM ", "MISCONF ", "BUSY ", // not now
	"NOAUTH ", "WRONGPASS ", "NOPERM ", "DENIED ", "ERR max number of clients reached", // not allowed
	"ERR DB index ", "ERR AUTH ", "ERR Client sent AUTH", // on a new connection, before anything else
}

// scriptFailed begins the reply of a Redis before 7 to a script in which a command failed. That command's own error
// follows scriptCause: "ERR Error running script (call to f_<sha>): @user_script:12: -OOM command not allowed …".
const (
	scriptFailed = "ERR Error running script "
	scriptCause  = ": -"
)

// scriptLine precedes the number of the line of a script in which a command failed.
const scriptLine = "@user_script:"

// beforeWriting holds how errors begin that a script's first write can get and a later one cannot: Redis checks for
// them before the first write, or they do not change while a script runs.
var beforeWriting = []string{"LOADING ", "MASTERDOWN ", "READONLY ", "NOREPLICAS ", "OOM ", "MISCONF ", "CLUSTERDOWN "}

// ofOneRequest holds how rejections of a command begin that may not concern all of its requests. A denial writes
// nothing, so it does not need memory, a disk, replicas or a master.
var ofOneRequest = []string{"CROSSSLOT ", "NOPERM ", "OOM ", "MISCONF ", "NOREPLICAS ", "READONLY "}

// isRejection reports whether an error of Redis means that the script has written nothing.
func isRejection(reply string) bool {
	if cause, inScript := causeOf(reply); inScript {
		return beginsWith(cause, beforeWriting)
	}
	return beginsWith(reply, rejections)
}

// isOfOneRequest reports whether an error of Redis is a rejection that each request may get or not get alone.
func isOfOneRequest(reply string) bool {
	cause, _ := causeOf(reply)
	return isRejection(reply) && beginsWith(cause, ofOneRequest)
}

// causeOf returns the error of the command that failed in a script of a Redis before 7, else the reply itself.
func causeOf(reply string) (cause string, inScript bool) {
	if !strings.HasPrefix(reply, scriptFailed) {
		return reply, false
	}
	_, cause, _ = strings.Cut(reply, scriptCause)
	return cause, true
}

// classify returns an error of the script as a rejection if Redis names a line of it before whose end nothing is
// written: the ACL denies its first commands. The text around the line differs between versions of Redis.
func (s *script) classify(err error) error {
	if err == nil || s.readsUntil == 0 {
		return err
	}
	var reply redis.Error
	if !errors.As(err, &reply) {
		return err
	}
	_, at, _ := strings.Cut(reply.Error(), scriptLine)
	digits := len(at) - len(strings.TrimLeft(at, "0123456789"))
	if line, _ := strconv.Atoi(at[:digits]); line == 0 || line > s.readsUntil {
		return err
	}
	return &Error{Kind: Rejected, err: err}
}

func beginsWith(text string, prefixes []string) bool {
	return slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(text, prefix) })
}

// classify wraps the error of a command in an Error. Where nothing is certain the kind is Unknown.
func classify(err error) *Error {
	var known *Error
	if errors.As(err, &known) {
		return known
	}
	kind := Unknown
	var reply redis.Error
	if errors.As(err, &reply) && isRejection(reply.Error()) {
		kind = Rejected
	}
	return &Error{Kind: kind, err: err}
}

// notSent returns the error of a call that was not sent because of err.
func notSent(err error) *Error {
	e := classify(err)
	if e.Kind == Unknown {
		e = &Error{Kind: NotSent, err: err}
	}
	return e
}

// failure returns what an error of a call means for the bounds of its request.
func failure(err error) decision.Failure {
	var known *Error
	switch {
	case errors.As(err, &known) && known.Kind != Unknown:
		return decision.Unavailable
	case callerTimedOut(err):
		return decision.TimedOut
	default:
		return decision.Lost
	}
}

// clientErrors holds how the errors of a healthy server begin that lacks the script or the key's slot, or has a foreign
// type there.
var clientErrors = []string{"NOSCRIPT ", "MOVED ", "ASK ", "TRYAGAIN ", "CROSSSLOT ", "WRONGTYPE "}

// isServerFault reports whether an error is the fault of its server. A caller's timeout is not a fault of the server:
// see [callerTimedOut].
func isServerFault(err error) bool {
	if err == nil || callerTimedOut(err) {
		return false
	}
	var reply redis.Error
	return !errors.As(err, &reply) || !beginsWith(reply.Error(), clientErrors)
}

// callerTimedOut reports whether a call ended because its caller had no more time, so that no answer was seen. A
// connection that could not be opened in time is the server's fault.
func callerTimedOut(err error) bool {
	if err == nil {
		return false // without the variables, which would be allocated
	}
	var dial *dialError
	var timeout net.Error
	switch {
	case errors.As(err, &dial):
		return false
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return true
	}
	return errors.As(err, &timeout) && timeout.Timeout()
}
