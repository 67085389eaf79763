package redis

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
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
	for _, test := range []struct {
		err  error
		kind Kind
	}{
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
		assert.Equal(t, test.kind, e.Kind, "%v: kind", test.err)
		wrapped := fmt.Errorf("take 3 bounds: %w", e)
		if e.MayHaveRun() != (test.kind == Unknown) || !errors.Is(wrapped, test.err) {
			t.Errorf("%v: errors.Is does not see what it is", test.err)
		}
		if again := classify(wrapped); again.Kind != test.kind {
			t.Errorf("%v: classified again it is %q", test.err, again.Kind)
		}
	}
}

func TestAnErrorSaysWhatIsKnownAndWhy(t *testing.T) {
	err := notSent(&dialError{"redis.internal:6379", errors.New("connection refused")})
	assert.Equal(t, "redis: not sent: connect to redis.internal:6379: connection refused", err.Error(), "got %q", err)
}

func TestACommandThatTheACLDeniesBeforeAnyWriteMeansThatNothingHasRun(t *testing.T) {
	server := redistest.Single(t)
	admin := server.Client(t)
	log := bound(t, "log", limit.Spec{Algorithm: limit.SlidingLog, Quantity: 100, Window: 24 * hour})
	for _, test := range []struct {
		lacks   string
		asked   policy.Bound
		failure decision.Failure
	}{
		{"time", hundred(t), decision.Unavailable},
		{"mget", hundred(t), decision.Unavailable},
		{"getrange", log, decision.Unavailable},
		{"getrange", hundred(t), decision.NoFailure}, // it needs none
		{"set", hundred(t), decision.Lost},           // another write may have come before
	} {
		t.Run(test.lacks+" of "+test.asked.Policy.Name, func(t *testing.T) {
			must(t, admin, "flushall")
			must(t, admin, "acl", "setuser", "kong", "reset", "on", ">hunter2", "~rl:*", "+@all", "-"+test.lacks)
			eachWay(t, func(t *testing.T, pipelined bool) {
				block := at(server, pipelined)
				block.Username, block.Password = "kong", "hunter2"
				store, release, err := NewRegistry(slog.New(slog.DiscardHandler), nil).Open(block)
				require.NoError(t, err)
				defer release()
				err = atOnce(20, 1, func() error {
					var statuses [1]decision.Status
					err := store.Take(context.Background(), []policy.Bound{test.asked}, statuses[:])
					if err == nil && statuses[0].Failure != test.failure {
						err = fmt.Errorf("the failure is %q, want %q", statuses[0].Failure, test.failure)
					}
					return err
				})
				assert.NoError(t, err)
			})
			if keys := admin.Keys(t.Context(), "rl:*").Val(); test.failure != decision.NoFailure && len(keys) > 0 {
				t.Errorf("%q were written", keys)
			}
		})
	}
}

func TestADenialOfTheACLIsKnownInTheWordsOfEachRedis(t *testing.T) {
	first := takeScript.readsUntil
	for _, words := range []string{
		"ERR Error running script (call to f_7b5c1ac3): @user_script:%d: @user_script: %[1]d: The user executing the script " +
			"can't run this command or subcommand", // 6.2
		"ERR The user executing the script can't run this command or subcommand script: 7b5c1ac3, on @user_script:%d.", // 7.0
		"ERR ACL failure in script: User kong has no permissions to run the 'mget' command script: 7b5c1ac3, " +
			"on @user_script:%d.", // since 7.2
	} {
		for line, kind := range map[int]Kind{1: Rejected, first: Rejected, first + 1: Unknown, 0: Unknown} {
			text := reply(fmt.Sprintf(words, line))
			if got := classify(takeScript.classify(text)).Kind; got != kind {
				t.Errorf("%s: %v, want %v, where it reads until line %d", text, got, kind, first)
			}
		}
	}
}
