package redis

import (
	"context"
	"fmt"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

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
				if err != nil {
					t.Error(err)
				}
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
