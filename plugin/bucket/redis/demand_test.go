package redis

import (
	"fmt"
	"log/slog"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

func TestOneNodeLeadsAndReadsAllReportsAndTheOthersReadItsCaps(t *testing.T) {
	client := redistest.Single(t).Client(t)
	f, _, _ := grouped(t, client)
	key := &policy.Key{Namespace: "a", Policy: "all", Group: policy.ByAll}
	report := func(node string) DemandAnswer {
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
	if a := report("two"); string(a.Caps) != "caps of one" || a.Lasts <= 0 || a.Lasts > time.Second {
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
		if !found || len(list) < 4 {
			t.Fatalf("%q lists the commands %q", row, list)
		}
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
	if a, err := store.ReportDemand(t.Context(), key, "one", []byte("x")); err != nil || !a.Leads {
		t.Errorf("%+v, %v", a, err)
	}
	if leads, err := store.PublishCaps(t.Context(), key, "one", []byte("x")); err != nil || !leads {
		t.Errorf("publish: %v, %v", leads, err)
	}
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
