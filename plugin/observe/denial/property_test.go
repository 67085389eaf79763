package denial

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// anyDecision draws a decision as the path makes them, for few tenants and policies, so that groups meet.
func anyDecision(t *rapid.T) *decision.Decision {
	org := rapid.SampledFrom([]string{"", "acme", "globex", "\xff", "\"\n"}).Draw(t, "org")
	mode := rapid.SampledFrom([]policy.Mode{policy.Enforce, policy.Enforce, policy.Shadow, policy.Log})
	statuses := rapid.SampledFrom([]decision.Status{
		admits, admits, denies, deniesLong, localNo, unanswered, {Source: decision.Redis, Wait: limit.Never},
	})
	reasons := []decision.Reason{decision.Counted, decision.Counted, decision.TenantMissing, decision.Banned}
	if reason := rapid.SampledFrom(reasons).Draw(t, "reason"); reason != decision.Counted {
		d := undecided(org)
		d.Mode = mode.Draw(t, "config's mode")
		d.DenyOrRecord(reason, 0)
		if d.Denied() {
			return d
		}
	}
	bounds := make([]answered, rapid.IntRange(0, 4).Draw(t, "bounds"))
	for i := range bounds {
		bounds[i].policy = named(rapid.SampledFrom([]string{"minute", "daily", "billing"}).Draw(t, "policy"), policy.Tenant)
		bounds[i].policy.Mode = mode.Draw(t, "mode")
		modes := []policy.FailMode{policy.FailOpen, policy.FailClosed, policy.FailLocal}
		bounds[i].policy.FailMode = rapid.SampledFrom(modes).Draw(t, "fail mode")
		bounds[i].status = statuses.Draw(t, "status")
	}
	d := decided(org, bounds...)
	d.Identity.IP = rapid.SampledFrom([]string{"", "192.0.2.1", "2001:db8::"}).Draw(t, "address")
	d.Identity.User = identity.Name{Kind: identity.User, ID: rapid.SampledFrom([]string{"", "u_1", "u_2"}).Draw(t, "user")}
	if rapid.Bool().Draw(t, "rehearsed") {
		d.Mode = policy.Log
		d.DenyOrRecord(decision.UserMissing, 0)
	}
	return d
}

// denialsOf counts what a decision's denials are, without a recorder: every enforced or rehearsed bound that has no
// room, every bound that fails closed if that is the reason, and every reason that is no bound's.
func denialsOf(d *decision.Decision) (n uint64) {
	if d.ShadowReason != decision.Counted {
		n++
	}
	if d.Reason != decision.Counted && d.Reason != decision.StoreAway {
		n++
	}
	for i := range d.Resolution.Bounds {
		switch {
		case d.Statuses[i].Source != decision.Unanswered:
			if d.Statuses[i].Wait != 0 {
				n++
			}
		case d.Reason == decision.StoreAway && decision.Denies(&d.Resolution.Bounds[i], &d.Statuses[i]):
			n++
		}
	}
	return n
}

// moody is a sink that fails as a list of moods says, over and over.
type moody struct {
	shelf
	moods []bool
	calls int
}

func (m *moody) Write(ctx context.Context, batch []Line) error {
	if m.calls++; m.moods[m.calls%len(m.moods)] {
		return errDiskFull
	}
	return m.shelf.Write(ctx, batch)
}

// Whatever is denied, by whom and when, whether sinks fail and how small the bounds are: the counts of all lines and of
// all drops are the denials, and the answers are the denied requests unless something was dropped.
func TestTheCountsOfAllLinesAndDropsAreTheDenials(t *testing.T) {
	published := readSchema(t)
	rapid.Check(t, func(rt *rapid.T) {
		to := &moody{moods: rapid.SliceOfN(rapid.Bool(), 1, 4).Draw(rt, "moods")}
		options := Options{
			Sinks: map[string]Sink{"moody": to}, Log: slog.New(slog.DiscardHandler),
			Singles:    rapid.IntRange(0, 3).Draw(rt, "singles"),
			MaxSingles: rapid.IntRange(1, 8).Draw(rt, "all singles"),
			MaxGroups:  rapid.IntRange(1, 6).Draw(rt, "groups"),
			QueueBytes: rapid.SampledFrom([]int{500, 2000, DefaultQueueBytes}).Draw(rt, "queue"),
			RetryFor:   rapid.SampledFrom([]time.Duration{time.Millisecond, time.Second, time.Minute}).Draw(rt, "retry"),
		}
		decisions := rapid.SliceOfN(rapid.Custom(anyDecision), 0, 60).Draw(rt, "decisions")
		steps := []time.Duration{0, 0, 0, 400 * time.Millisecond, 3 * time.Second}
		pauses := rapid.SliceOfN(rapid.SampledFrom(steps), 1, 8).Draw(rt, "pauses")
		var denials, requests uint64
		var stats SinkStats
		synctest.Test(t, func(t *testing.T) {
			r := New(options)
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- r.Run(ctx) }()
			for i, d := range decisions {
				r.Observe(d)
				denials += denialsOf(d)
				if d.Denied() {
					requests++
				}
				wait(pauses[i%len(pauses)])
			}
			cancel()
			assert.NoError(t, <-ended)
			stats = r.Stats()[0]
		})
		dropped := uint64(0)
		for why, n := range stats.Dropped {
			if why != Groups { // these are in lines for others
				dropped += n
			}
		}
		count, answers := sums(to.events(t))
		if count+dropped != denials || stats.Queued != 0 || answers > requests ||
			(dropped == 0 && answers != requests) {
			rt.Fatalf("lines count %d denials and %d answers, %d denials are dropped; want %d and %d (%+v)",
				count, answers, dropped, denials, requests, stats)
		}
		lines, seconds := map[string]int{}, map[string]int{}
		for _, line := range to.lines {
			require.NoError(rt, check(published, line.Text), "%s", line.Text)
		}
		for _, e := range to.events(t) {
			place := fmt.Sprintln(e.First[:len("2000-01-01T00:00:00")], e.OrgKind, e.Org, e.Policy, e.Reason, e.Mode, e.Others)
			if lines[place]++; e.Org != "\uFFFD" && lines[place] > options.Singles+1 {
				rt.Fatalf("%d lines for %s", lines[place], place)
			}
			second := e.First[:len("2000-01-01T00:00:00")]
			const others = 3*7*3 + 1 // policies, reasons, modes
			if seconds[second]++; seconds[second] > options.MaxSingles+options.MaxGroups+others {
				rt.Fatalf("%d lines in a second", seconds[second])
			}
		}
	})
}
