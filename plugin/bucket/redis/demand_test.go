package redis

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/fair"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// stillDemand is the script that exchanges demand, by a clock that stands still.
var stillDemand = newScript(strings.Replace(demandScript.source, `redis.call("TIME")`, "{1700000000, 0}", 1))

// still is a transport on which no report, lead or caps end, however long a machine stalls.
type still struct{ direct }

func (s *still) Run(ctx context.Context, script *script, c *call) error {
	if script == demandScript {
		script = stillDemand
	}
	return s.direct.Run(ctx, script, c)
}

func TestOneNodeLeadsAndReadsAllReportsAndTheOthersReadItsCaps(t *testing.T) {
	client := redistest.Single(t).Client(t)
	f := newStore("test", &still{direct{client, true}}, takeScript, quiet)
	key := &policy.Key{Namespace: "a", Policy: "all", Group: policy.ByAll}
	report := func(node string) fair.Answer {
		t.Helper()
		a, err := f.ReportDemand(t.Context(), key, node, []byte("demand at\x00\n"+node))
		require.NoError(t, err)
		return a
	}
	if a := report("one"); !a.Leads || len(a.Reports) != 1 || a.Caps != nil ||
		string(a.Reports[0]) != "demand at\x00\none" {
		t.Errorf("the first node gets %+v", a)
	}
	if a := report("two"); a.Leads || a.Reports != nil {
		t.Errorf("the second node gets %+v, and should not lead", a)
	}
	if a := report("one"); !a.Leads || len(a.Reports) != 2 {
		t.Errorf("the leader gets %+v, want both reports", a)
	}
	for node, want := range map[string]bool{"two": false, "one": true} {
		if leads, err := f.PublishCaps(t.Context(), key, node, []byte("caps of "+node)); leads != want || err != nil {
			t.Errorf("%s publishes: %v, %v", node, leads, err)
		}
	}
	if a := report("two"); string(a.Caps) != "caps of one" || a.Lasts != time.Second {
		t.Errorf("the second node reads %+v, want the leader's caps for a second", a)
	}
	other := *key
	other.Policy = "other"
	if a, err := f.ReportDemand(t.Context(), &other, "two", nil); err != nil || !a.Leads || a.Caps != nil {
		t.Errorf("of another limit the node gets %+v, %v", a, err)
	}
	if ttl := client.PTTL(t.Context(), "rl:a:{g}:fair:all").Val(); ttl <= 0 || ttl > time.Minute {
		t.Errorf("the messages expire in %v", ttl)
	}
}

func TestANodeThatIsKilledLeadsNoMore(t *testing.T) {
	client := redistest.Single(t).Client(t)
	f, _, _ := grouped(t, client)
	key := &policy.Key{Namespace: "a", Policy: "all", Group: policy.ByEndpoint, GroupID: "orders"}
	if a, err := f.ReportDemand(t.Context(), key, "killed", []byte("x")); err != nil || !a.Leads {
		t.Fatalf("%+v, %v", a, err)
	}
	await.That(t, "another node leads", func() bool {
		a, err := f.ReportDemand(t.Context(), key, "next", []byte("y"))
		return err == nil && a.Leads
	})
	await.That(t, "the killed node's report is gone", func() bool {
		a, err := f.ReportDemand(t.Context(), key, "next", []byte("y"))
		return err == nil && len(a.Reports) == 1
	})
	if leads, err := f.PublishCaps(t.Context(), key, "killed", []byte("late")); leads || err != nil {
		t.Errorf("the killed node publishes: %v, %v", leads, err)
	}
}

func TestALeaderFromBeforeTheClockSteppedBackDoesNotLeadForever(t *testing.T) {
	client := redistest.Single(t).Client(t)
	f, _, _ := grouped(t, client)
	key := &policy.Key{Namespace: "a", Policy: "all", Group: policy.ByAll}
	must(t, client, "hset", "rl:a:{g}:fair:all", "lead", "99999999999999 future", "caps", "garbage")
	if a, err := f.ReportDemand(t.Context(), key, "present", []byte("x")); err != nil || !a.Leads || a.Caps != nil {
		t.Errorf("%+v, %v", a, err)
	}
}

func TestTheDocumentedCommandsSufficeToExchangeDemand(t *testing.T) {
	page, err := os.ReadFile("../../../docs/redis.md")
	require.NoError(t, err)
	server := redistest.Single(t)
	user := []any{"acl", "setuser", "node", "on", ">secret", "~rl:*"}
	for _, row := range []string{"ACL: commands", "ACL: more for limits with"} {
		_, after, found := strings.Cut(string(page), "| "+row)
		line, _, _ := strings.Cut(after, "\n")
		_, commands, _ := strings.Cut(line, "| ")
		list := regexp.MustCompile("`([a-z|\\\\]+)`").FindAllStringSubmatch(commands, -1)
		require.True(t, found && len(list) >= 4, "%q lists the commands %q", row, list)
		for _, one := range list {
			user = append(user, "+"+strings.ReplaceAll(one[1], `\|`, "|"))
		}
	}
	must(t, server.Client(t), user...)
	block := at(server, false)
	block.Username, block.Password = "node", "secret"
	store, release, err := NewRegistry(slog.New(slog.DiscardHandler), nil).Open(block)
	require.NoError(t, err)
	defer release()
	key := &policy.Key{Namespace: "a", Policy: "all", Group: policy.ByAll}
	// On a machine that stalls, the node may lead no more before it publishes.
	await.That(t, "the node publishes while it leads", func() bool {
		a, err := store.ReportDemand(t.Context(), key, "one", []byte("x"))
		require.True(t, err == nil && a.Leads, "%+v, %v", a, err)
		leads, err := store.PublishCaps(t.Context(), key, "one", []byte("x"))
		require.NoError(t, err, "publish")
		return leads
	})
}

func TestCapsFromBeforeTheClockSteppedBackDoNotOutliveTheirSecond(t *testing.T) {
	client := redistest.Single(t).Client(t)
	f, _, _ := grouped(t, client)
	key := &policy.Key{Namespace: "a", Policy: "all", Group: policy.ByAll}
	ends := client.Time(t.Context()).Val().Add(30 * time.Second).UnixMilli()
	must(t, client, "hset", "rl:a:{g}:fair:all", "lead", fmt.Sprint(ends, " killed"), "caps", fmt.Sprint(ends, " stale"),
		"of killed", fmt.Sprint(ends, " stale"))
	if a, err := f.ReportDemand(t.Context(), key, "alive", []byte("x")); err != nil || !a.Leads || a.Caps != nil ||
		len(a.Reports) != 1 {
		t.Errorf("%+v, %v", a, err)
	}
}

func TestNodesThatLiveAreCountedByNamespace(t *testing.T) {
	client := redistest.Single(t).Client(t)
	f, _, _ := grouped(t, client)
	beat := func(want int, namespace, node string, ttl time.Duration) {
		t.Helper()
		if live, err := f.Beat(t.Context(), namespace, node, ttl); live != want || err != nil {
			t.Errorf("%s of %s: %d nodes live, %v; want %d", node, namespace, live, err, want)
		}
	}
	beat(1, "a", "one", time.Hour)
	beat(1, "a", "one", time.Hour)
	beat(2, "a", "two", time.Hour)
	beat(1, "b", "one", time.Hour)
	assert.NoError(t, f.Leave(t.Context(), "a", "one"))
	beat(1, "a", "two", time.Hour)
	if ttl := client.PTTL(t.Context(), "rl:a:{n}").Val(); ttl <= time.Hour {
		t.Errorf("the key expires in %v, want some time after the last node would", ttl)
	}
}

func TestANodeThatSaysNothingMoreIsDead(t *testing.T) {
	client := redistest.Single(t).Client(t)
	f, _, _ := grouped(t, client)
	if _, err := f.Beat(t.Context(), "a", "silent", time.Millisecond); err != nil {
		t.Fatal(err)
	}
	await.That(t, "the silent node is dead", func() bool {
		live, err := f.Beat(t.Context(), "a", "speaks", time.Hour)
		return err == nil && live == 1
	})
}

func TestANodeFromBeforeTheClockSteppedBackDoesNotLiveForever(t *testing.T) {
	client := redistest.Single(t).Client(t)
	f, _, _ := grouped(t, client)
	must(t, client, "zadd", "rl:a:{n}", time.Now().Add(48*time.Hour).UnixMilli(), "future")
	if live, err := f.Beat(t.Context(), "a", "present", time.Minute); live != 1 || err != nil {
		t.Errorf("%d nodes live, %v; want 1", live, err)
	}
}

func TestAForgottenBucketIsEmptyAndItsNeighboursAreNot(t *testing.T) {
	client := redistest.Single(t).Client(t)
	f, _, _ := grouped(t, client)
	var bounds []policy.Bound
	for _, name := range []string{"a", "b", "c"} {
		bounds = append(bounds, costing(bound(t, name, limit.Spec{Algorithm: limit.FixedWindow, Quantity: 10, Window: hour}),
			4))
	}
	log := costing(of(bound(t, "log", limit.Spec{Algorithm: limit.SlidingLog, Quantity: 10, Window: hour}), "u"), 4)
	never := of(bounds[0], "never seen")
	f.take(t, append(bounds, log)...)
	n, err := f.Forget(t.Context(), []policy.Bound{bounds[1], log, never})
	require.True(t, n == 2 && err == nil, "%d buckets, %v, want 2", n, err)
	for i, want := range []int64{4, 0, 4} {
		if s := f.take(t, costing(bounds[i], 0))[0]; s.Used != want {
			t.Errorf("bucket %d has %d used, want %d", i, s.Used, want)
		}
	}
	if s := f.take(t, costing(log, 1))[0]; s.Used != 1 {
		t.Errorf("the log has %d used after one more request, want 1", s.Used)
	}
	if keys := client.Keys(t.Context(), "*log*").Val(); len(keys) != 1 {
		t.Errorf("keys of logs are %q, want the new one", keys)
	}
	if n, err := f.Forget(t.Context(), []policy.Bound{bounds[0], bounds[2]}); n != 2 || err != nil {
		t.Errorf("%d buckets, %v, want 2", n, err)
	}
	if n := client.Exists(t.Context(), string(appendSubject(nil, &bounds[1].Key))).Val(); n != 0 {
		t.Error("a subject without buckets is still there")
	}
}

func TestWhatIsNotOursIsNotForgotten(t *testing.T) {
	client := redistest.Single(t).Client(t)
	f, _, _ := grouped(t, client)
	b := hundred(t)
	f.set(t, string(appendSubject(nil, &b.Key)), "another program's")
	must(t, client, "rpush", logKey(b), "another program's")
	if n, err := f.Forget(t.Context(), []policy.Bound{b}); n != 0 || err != nil {
		t.Errorf("%d buckets, %v", n, err)
	}
	if value := client.Get(t.Context(), string(appendSubject(nil, &b.Key))).Val(); value != "another program's" {
		t.Errorf("the key now holds %q", value)
	}
}
