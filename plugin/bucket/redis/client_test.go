package redis

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/faultproxy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/freeport"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

const countScript = "return {redis.call('incr', KEYS[1])}"

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

// atOnce makes calls from many goroutines and answers their errors.
func atOnce(callers, each int, call func() error) error {
	var wg sync.WaitGroup
	errs := make([]error, callers)
	for i := range callers {
		wg.Go(func() {
			for range each {
				errs[i] = errors.Join(errs[i], call())
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// eachWay runs a test with and without a pipeline.
func eachWay(t *testing.T, test func(t *testing.T, pipelined bool)) {
	for _, pipelined := range []bool{true, false} {
		t.Run(fmt.Sprintf("pipeline=%t", pipelined), func(t *testing.T) { test(t, pipelined) })
	}
}

func TestACallIsOneEvalshaAndNothingElse(t *testing.T) {
	server := redistest.Single(t)
	client := server.Client(t)
	eachWay(t, func(t *testing.T, pipelined bool) {
		c := checked(t, newScript(countScript), at(server, pipelined))
		const callers, each = 32, 20
		call := func() error { return run(c, "once") }
		require.NoError(t, atOnce(callers, 1, call)) // opens the connections
		must(t, client, "config", "resetstat")
		require.NoError(t, atOnce(callers, each, call))
		calls := calls(t, client)
		if calls["evalsha"] != callers*each || calls["incr"] != callers*each {
			t.Errorf("%d calls ran %d EVALSHA and the script %d times", callers*each, calls["evalsha"], calls["incr"])
		}
		opened := 0
		if pipelined {
			opened = 1 // a wire is opened with a PING
		}
		for command, most := range map[string]int{"eval": 0, "script|load": 0, "script": 0, "ping": opened} {
			assert.True(t, calls[command] <= most, "%s was called %d times", command, calls[command])
		}
	})
}

func TestALostScriptIsHealedAndRunsOnceForEachCall(t *testing.T) {
	server := redistest.Single(t)
	client := server.Client(t)
	eachWay(t, func(t *testing.T, pipelined bool) {
		c := checked(t, newScript(countScript), at(server, pipelined)) // the script is there, and lost twice
		const callers, each = 16, 10
		must(t, client, "del", "healed")
		must(t, client, "config", "resetstat")
		for range 2 {
			var calls atomic.Int32
			err := atOnce(callers, each/2, func() error {
				if calls.Add(1) == callers {
					if err := client.ScriptFlush(context.Background()).Err(); err != nil {
						return err
					}
				}
				return run(c, "healed")
			})
			require.NoError(t, err)
		}
		if count, err := client.Get(t.Context(), "healed").Int(); err != nil || count != callers*each {
			t.Errorf("%d calls counted %d (%v)", callers*each, count, err)
		}
		if calls := calls(t, client); calls["script|load"] == 0 || calls["script|load"] > 2*callers || calls["eval"] != 0 {
			t.Errorf("%d SCRIPT LOAD and %d EVAL for two losses", calls["script|load"], calls["eval"])
		}
	})
}

// wantLate returns an error unless err is that of a call without a reply. A busy server may not have let a wire open:
// then its calls are not sent.
func wantLate(err error, pipelined bool) error {
	if pipelined && wantKind(err, NotSent) == nil {
		return nil
	}
	return wantKind(err, Unknown)
}

func TestACallEndsAfterReadTimeout(t *testing.T) {
	eachWay(t, func(t *testing.T, pipelined bool) {
		server := redistest.Single(t) // of its own: it hangs until the end
		block := at(server, pipelined)
		block.ConnectTimeout, block.SendTimeout, block.ReadTimeout = 60_000, 60_000, 200
		c := open(t, newScript(countScript), block)
		await.That(t, "calls succeed", func() bool { return atOnce(8, 1, func() error { return run(c, "k") }) == nil })
		server.Hang(t)
		for _, callers := range []int{1, 8} {
			err := atOnce(callers, 1, func() error {
				started := time.Now()
				err := run(c, "k")
				if took := time.Since(started); took > 30*time.Second { // far from the other timeouts
					t.Errorf("%d callers: one waited %v", callers, took)
				}
				return wantLate(err, pipelined)
			})
			assert.NoError(t, err)
		}
	})
}

func TestAScriptWhoseReplyIsLostIsNotRunAgain(t *testing.T) {
	server := redistest.Single(t)
	client := server.Client(t)
	proxy := faultproxy.New(t, server.Address())
	eachWay(t, func(t *testing.T, pipelined bool) {
		block := at(server, pipelined)
		block.Port = int64(proxy.Port())
		c := checked(t, newScript(countScript), block)
		for _, callers := range []int{1, 8} {
			require.NoError(t, atOnce(callers, 5, func() error { return run(c, "k") }))
			must(t, client, "del", "k")
			proxy.CutReplies(-1, faultproxy.Reset)
			var unknown atomic.Int64
			if err := atOnce(callers, 1, func() error {
				err := run(c, "k")
				if callers > 1 && wantKind(err, NotSent) == nil {
					return nil // it waited for the wire that the lost reply ended
				}
				unknown.Add(1)
				return wantKind(err, Unknown)
			}); err != nil {
				t.Error(err)
			}
			require.NoError(t, proxy.Heal())
			if err := atOnce(callers, 5, func() error { return run(c, "k") }); err != nil {
				t.Errorf("afterwards: %v", err)
			}
			most := 5*callers + int(unknown.Load())
			if count, err := client.Get(t.Context(), "k").Int(); err != nil || count <= 5*callers || count > most {
				t.Errorf("%d calls with a reply and %d of unknown outcome counted %d (%v)", 5*callers, unknown.Load(), count, err)
			}
		}
	})
}

func TestACallEndsWithItsContext(t *testing.T) {
	eachWay(t, func(t *testing.T, pipelined bool) {
		server := redistest.Single(t) // of its own: it hangs
		block := at(server, pipelined)
		block.ReadTimeout = 60_000
		c := checked(t, newScript(countScript), block)
		if err := atOnce(8, 1, func() error { return run(c, "k") }); err != nil { // opens the connections
			t.Fatal(err)
		}
		server.Hang(t)
		t.Cleanup(func() { server.Resume(t) }) // before the client closes, which waits for the answers
		err := atOnce(8, 1, func() error {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second/2)
			defer cancel()
			started := time.Now()
			_, err := evaluate(ctx, c, c.script, []string{"k"})
			if took := time.Since(started); took > 30*time.Second {
				return fmt.Errorf("%v after %v", err, took)
			}
			return wantLate(err, pipelined)
		})
		assert.NoError(t, err)
		over, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = evaluate(over, c, c.script, []string{"k"})
		assert.NoError(t, wantKind(err, NotSent), "a call whose context is over before it starts")
	})
}

func TestACallWithoutAConnectionIsNotSent(t *testing.T) {
	eachWay(t, func(t *testing.T, pipelined bool) {
		c := open(t, newScript(countScript), schema.Redis{
			Host: "127.0.0.1", Port: int64(freeport.Port(t)), Pipeline: pipelined, ReadTimeout: 1000, KeepalivePoolSize: 64,
		})
		if err := atOnce(8, 1, func() error { return wantKind(run(c, "k"), NotSent) }); err != nil {
			t.Error(err)
		}
	})
}

func TestWhatRedisDeniesIsRejected(t *testing.T) {
	server := redistest.Single(t)
	client := server.Client(t)
	must(t, client, "acl", "setuser", "reader", "on", ">secret", "+@all", "-script", "-evalsha", "~*")
	master := redistest.Single(t)
	for _, test := range []struct {
		name       string
		make, undo []any
		change     func(*schema.Redis)
	}{
		{"no memory", []any{"config", "set", "maxmemory", "1"}, []any{"config", "set", "maxmemory", "0"}, nil},
		{"replica", []any{"replicaof", master.Host, master.Port}, []any{"replicaof", "no", "one"}, nil},
		{"wrong password", nil, nil, func(r *schema.Redis) { r.Username, r.Password = "reader", "wrong" }},
		{"may not", nil, nil, func(r *schema.Redis) { r.Username, r.Password = "reader", "secret" }},
		{"no such database", nil, nil, func(r *schema.Redis) { r.Database = 99 }},
	} {
		t.Run(test.name, func(t *testing.T) {
			eachWay(t, func(t *testing.T, pipelined bool) {
				block := at(server, pipelined)
				if test.change != nil {
					test.change(&block)
				}
				c := open(t, newScript(countScript), block)
				if test.make != nil {
					must(t, client, "script", "load", countScript)
					must(t, client, test.make...)
					defer must(t, client, test.undo...)
				}
				if err := atOnce(8, 1, func() error { return wantKind(run(c, "k"), Rejected) }); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

func TestCallsGoOnWhenAHungRedisAnswersAgain(t *testing.T) {
	server := redistest.Single(t)
	eachWay(t, func(t *testing.T, pipelined bool) {
		block := at(server, pipelined)
		block.ReadTimeout = 100
		c := open(t, newScript(countScript), block)
		call := func() error { return run(c, "hung") }
		await.That(t, "calls succeed", func() bool { return atOnce(8, 1, call) == nil })
		server.Hang(t)
		for range 2 {
			if err := atOnce(8, 1, func() error {
				if call() == nil {
					return errors.New("a hung Redis has answered")
				}
				return nil
			}); err != nil {
				t.Error(err)
			}
		}
		server.Resume(t)
		await.That(t, "calls succeed again", func() bool { return atOnce(8, 1, call) == nil })
	})
}

// BenchmarkCallers is what directCallers and the pipeline rest on.
func BenchmarkCallers(b *testing.B) {
	server := redistest.Single(b)
	for _, way := range []string{"alone", "pipelined", "chosen"} {
		for _, callers := range []int{1, 2, 3, 4, 6, 16, 64, 256} {
			b.Run(fmt.Sprintf("%s/callers=%d", way, callers), func(b *testing.B) {
				block := at(server, way != "alone")
				block.KeepalivePoolSize = 256
				c := open(b, newScript("return {1}"), block)
				if way == "pipelined" {
					c.backend.(single).callers.Store(directCallers)
				}
				require.NoError(b, atOnce(callers, 1, func() error { return run(c, "k") }))
				b.ReportAllocs()
				var taken atomic.Int64
				b.ResetTimer()
				err := atOnce(callers, 1, func() error {
					for taken.Add(1) <= int64(b.N) {
						if err := run(c, "k"); err != nil {
							return err
						}
					}
					return nil
				})
				require.NoError(b, err)
			})
		}
	}
}
