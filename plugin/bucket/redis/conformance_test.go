package redis

import (
	"context"
	"log/slog"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/store"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/internal/storetest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limit"
)

// turnedClock is the script whose time is the instant that clock has written. What Redis does by its own time it leaves
// out: keys do not expire, and nothing is swept, which a clock that steps back would notice.
var turnedClock = newScript(assemble("frame", standing))

var standing = map[string]string{"clock": `
local now, STEP_BACK = tonumber(redis.call("GET", "clock")), 2 ^ 53
local redis = {pcall = redis.pcall, call = function(command, ...)
  if command == "PEXPIRE" then return end
  local key, value, option = ...
  if option == "PX" then return redis.call(command, key, value) end
  return redis.call(command, ...)
end}
`}

// turned makes a store split by the clock that its script reads.
func turned(s *Store) *Store {
	s.splitting = newScript(assemble("split", standing))
	if s.script == givenClock {
		s.splitting = newScript(strings.Replace(s.splitting.source, `redis.call("GET", "clock")`, `ARGV[2]`, 1))
	}
	return s
}

// givenClock is the script whose time comes with each request: in a cluster there is no key that all masters can read.
var givenClock = newScript(strings.Replace(turnedClock.source, `redis.call("GET", "clock")`, `ARGV[2]`, 1))

// timed is a transport whose requests say what time it is.
type timed struct {
	transport
	clock storetest.Clock
}

func (t timed) Run(ctx context.Context, script *script, c *call) error {
	c.args = append(c.args[:1:1], strconv.AppendInt(nil, int64(t.clock.Now()), 10))
	return t.transport.Run(ctx, script, c)
}

// clock is a storetest.Clock that lives in Redis, so that requests at the same time never see it step back.
type clock struct {
	t      testing.TB
	client redis.UniversalClient
}

func newClock(t testing.TB, client redis.UniversalClient) clock {
	c := clock{t, client}
	if err := client.Set(context.Background(), "clock", int64(storetest.Start), 0).Err(); err != nil {
		t.Fatalf("set the clock: %v", err)
	}
	return c
}

func (c clock) Now() limit.Micros {
	now, err := c.client.Get(context.Background(), "clock").Int64()
	if err != nil {
		c.t.Fatalf("read the clock: %v", err)
	}
	return limit.Micros(now)
}

func (c clock) Advance(by limit.Micros) {
	if err := c.client.IncrBy(context.Background(), "clock", int64(by)).Err(); err != nil {
		c.t.Fatalf("turn the clock: %v", err)
	}
}

// direct is the least that a transport can be: one connection pool.
type direct struct {
	client redis.UniversalClient
	groups bool
}

func (d *direct) Groups() bool { return d.groups }

func (d *direct) Run(ctx context.Context, script *script, c *call) error {
	err := d.client.Process(ctx, c.forGoRedis(script))
	if redis.HasErrorPrefix(err, "NOSCRIPT") {
		if err := d.client.ScriptLoad(ctx, script.source).Err(); err != nil {
			return err
		}
		err = d.client.Process(ctx, c.forGoRedis(script))
	}
	if err != nil {
		return classify(err)
	}
	return nil
}

func (d *direct) Probe(context.Context) {}

func flush(t testing.TB, client redis.UniversalClient) {
	t.Helper()
	if err := client.FlushAll(context.Background()).Err(); err != nil {
		t.Fatalf("empty Redis: %v", err)
	}
}

func TestRedisstoreKeepsTheStoresPromises(t *testing.T) {
	client := redistest.Single(t).Client(t)
	for _, groups := range []bool{false, true} {
		t.Run("groups="+strconv.FormatBool(groups), func(t *testing.T) {
			storetest.Run(t, func(t *testing.T) (store.Store, storetest.Clock) {
				flush(t, client)
				return turned(newStore("test", &direct{client, groups}, turnedClock, slog.New(slog.DiscardHandler))), newClock(t, client)
			})
		})
	}
}

func TestARealClusterKeepsTheStoresPromises(t *testing.T) {
	t.Parallel()
	nodes := covering(t, 0)
	eachWay(t, func(t *testing.T, pipelined bool) {
		c := checked(t, givenClock.source, among(nodes, pipelined))
		storetest.Run(t, func(t *testing.T) (store.Store, storetest.Clock) {
			for _, master := range nodes.Masters {
				flush(t, master.Client(t))
			}
			clock := storetest.NewClock()
			return turned(newStore("test", timed{c, clock}, givenClock, quiet)), clock
		})
	})
}
