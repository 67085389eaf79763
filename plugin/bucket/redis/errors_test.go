package redis

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"

	"github.com/redis/go-redis/v9"
)

// reply is an error that Redis answered.
type reply string

func (r reply) Error() string { return string(r) }
func (reply) RedisError()     {}

// inScript is what Redis 6.2 answers when a command of a script fails.
func inScript(inner string) reply {
	return reply("ERR Error running script (call to f_7b5c1ac3): @user_script:88: @user_script: 88: -" + inner)
}

func TestWhatIsNotCertainIsUnknown(t *testing.T) {
	refused := &net.OpError{Op: "dial", Err: errors.New("connection refused")}
	for _, test := range []struct {
		err  error
		kind Kind
	}{
		{&dialError{"h:1", refused}, NotSent},
		{fmt.Errorf("all down: %w", errors.Join(&dialError{"h:1", refused})), NotSent},
		{redis.ErrClosed, NotSent},
		{redis.ErrPoolTimeout, NotSent},
		{redis.ErrAutoPipelineQueueFull, NotSent},
		{errors.New("redis: all sentinels specified in configuration are unreachable: EOF"), NotSent},
		{reply("LOADING Redis is loading the dataset in memory"), Rejected},
		{reply("READONLY You can't write against a read only replica."), Rejected},
		{reply("TRYAGAIN Multiple keys request during rehashing of slot"), Rejected},
		{reply("BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE."), Rejected},
		{reply("MOVED 3999 127.0.0.1:6381"), Rejected},
		{reply("OOM command not allowed when used memory > 'maxmemory'."), Rejected},
		{reply("NOPERM this user has no permissions to run the 'evalsha' command"), Rejected},
		{reply("WRONGPASS invalid username-password pair or user is disabled."), Rejected},
		{inScript("OOM command not allowed when used memory > 'maxmemory'."), Rejected},
		{inScript("READONLY You can't write against a read only replica."), Rejected},
		{
			inScript("MISCONF Redis is configured to save RDB snapshots, but it is currently not able to persist on disk."),
			Rejected,
		},
		{inScript("LOADING Redis is loading the dataset in memory"), Rejected},
		{inScript("CLUSTERDOWN The cluster is down"), Rejected},
		{inScript("NOREPLICAS Not enough good replicas to write."), Rejected},
		{inScript("WRONGTYPE Operation against a key holding the wrong kind of value"), Unknown},
		{
			reply("ERR Error running script (call to f_0123): @user_script:7: user_script:7: attempt to compare nil with OOM "),
			Unknown,
		},
		{reply("ERR user_script:1: attempt to index a nil value"), Unknown}, // it may have written before
		{reply("WRONGTYPE Operation against a key holding the wrong kind of value"), Unknown},
		{io.EOF, Unknown},
		{&net.OpError{Op: "read", Err: errors.New("i/o timeout")}, Unknown},
		{context.DeadlineExceeded, Unknown},
		{redis.Nil, Unknown},
	} {
		e := classify(test.err)
		if e.Kind != test.kind {
			t.Errorf("%v: kind %q, want %q", test.err, e.Kind, test.kind)
		}
		wrapped := fmt.Errorf("take 3 bounds: %w", e)
		if errors.Is(wrapped, errUnknown) != (test.kind == Unknown) || !errors.Is(wrapped, test.err) {
			t.Errorf("%v: errors.Is does not see what it is", test.err)
		}
		if again := classify(wrapped); again.Kind != test.kind {
			t.Errorf("%v: classified again it is %q", test.err, again.Kind)
		}
	}
}

func TestAnErrorSaysWhatIsKnownAndWhy(t *testing.T) {
	err := classify(&dialError{"redis.internal:6379", errors.New("connection refused")})
	if want := "redis: not sent: connect to redis.internal:6379: connection refused"; err.Error() != want {
		t.Errorf("got %q, want %q", err, want)
	}
}
