package metrics

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/leaktest"
	buckets "github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/addresses"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/lease"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/memory"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/outage"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/redis"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/reservation"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/share"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/policysync"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/kong/phase"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/kong/wire"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/node/candidate"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/observe/denial"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/observe/usage"
)

// A server that has ended leaves no goroutine behind.
func TestMain(m *testing.M) { leaktest.Main(m) }

// answered is one bound of a decision.
type answered struct {
	policy policy.Policy
	status decision.Status
}

// decided returns a combined decision over bounds, for a tenant of the tier.
func decided(t testing.TB, tier string, bounds ...answered) *decision.Decision {
	t.Helper()
	d := new(decision.Decision)
	d.Reset()
	d.Identity.Tenant = identity.Name{Kind: identity.Tenant, ID: "acme"}
	d.Identity.Tier, d.Resolution.Tier = tier, tier
	for _, b := range bounds {
		compiled, err := limit.New(limit.Spec{Algorithm: limit.FixedWindow, Quantity: 10, Window: limit.Second})
		require.NoError(t, err)
		b.policy.Limit = compiled
		d.Resolution.Bounds = append(d.Resolution.Bounds, policy.Bound{Policy: &b.policy, Cost: 1})
	}
	d.Grow()
	for i, b := range bounds {
		d.Statuses[i] = b.status
	}
	d.Combine()
	return d
}

// Statuses of stores in these tests.
var (
	admits   = decision.Status{Source: decision.Redis}
	denies   = decision.Status{Source: decision.Redis, Wait: limit.Second}
	localYes = decision.Status{Source: decision.Local, Failure: decision.TimedOut}
	localNo  = decision.Status{Source: decision.Local, Failure: decision.TimedOut, Wait: limit.Second}
	// localByChoice is for an address above the budget for new ones
	localByChoice = decision.Status{Source: decision.Local}
	unanswered    = decision.Status{Failure: decision.Unavailable, Wait: limit.Second}
)

// everySource returns sources in which no number is 0.
func everySource() Sources {
	s := Sources{
		Stores:  func() []Store { return []Store{{Name: "redis:6379", Degraded: true}} },
		Limits:  func() []Limit { return []Limit{{"minute", "gold", 600}, {"shared", "", 9000}} },
		Settles: true,
	}
	s.Add(
		of(phase.Counters{Counters: wire.Counters{
			Events: 1000, Questions: 2001, Writes: 1002, Panics: 4, Failures: 5, UnknownInstances: 6,
		}, Instances: 3, ConfigFaults: 7}),
		of(Process{8, map[string]uint64{"warn": 54, "error": 55}}),
		of(memory.Stats{Buckets: 11, Expired: 12, Evicted: 13}),
		of(policysync.Stats{
			Connected: true, Version: 31, Age: 3500 * time.Millisecond, Propagation: 250 * time.Millisecond,
			Rows: 32, FaultCount: 33, Loads: 34, CatchUps: 35, Saves: 36,
		}),
		of([]buckets.Stats{{
			Name: "redis:6379", Degraded: true, DegradedFor: 21500 * time.Millisecond,
			Outage: outage.Stats{
				Waiting: 22, Live: map[string]int{"default": 3, "eu": 2},
				Policies: map[string]outage.Tally{"a": {Charged: 20, WrittenOff: 24}, "b": {Charged: 3}},
			},
			Redis: redis.Stats{Foreign: 25, Taken: 26, LostRefunds: 27, LostSettlements: 84, Calls: 28},
			Lease: lease.Stats{
				FromLease: 61, FromMemory: 62, FromStore: 63, Renewals: 64, Failed: 71, Refunds: 65, Leases: 72, Out: 66,
				Tokens: lease.Tokens{Granted: 67, Spent: 68, Returned: 69, Expired: 70},
			},
			Addresses: addresses.Stats{
				Apart: 73, Prefix: 74, Local: 75, Kept: 76, Most: 77, Rate: 78, LogBytes: 79, MostLogBytes: 80,
			},
		}}),
		of(Reservations{
			reservation.Stats{Kept: 81, Parked: 85, Unknown: 82, Unrecorded: 86, Elsewhere: 87, Abandoned: 88}, 83,
		}),
		of(Overrides{Bans: 41, Exemptions: 42, Limits: 43, Penalties: 44}),
		of([]denial.SinkStats{
			{Name: "file", Written: 51, Dropped: map[denial.Reason]uint64{denial.Queue: 52}, Queued: 53, Failing: true},
		}),
		of([]share.Stats{{Limits: 100, Leads: 102, Tenants: 103, Failed: 100}, {Limits: 1, Failed: 4}}),
		of(candidate.Stats{
			Active: candidate.Results{Admitted: 105, Denied: 106}, Candidate: candidate.Results{Admitted: 107, Denied: 108},
			Enforced: candidate.Results{Admitted: 109, Denied: 110}, Waiting: 115,
			Dropped: map[candidate.Drop]uint64{candidate.QueueFull: 113},
		}),
		of(struct {
			Open   bool          `metric:"candidate_open"`
			Age    time.Duration `metric:"candidate_age_seconds"`
			Failed uint64        `metric:"candidate_report_failures_total"`
		}{true, 116500 * time.Millisecond, 114}),
		of(usage.Stats{
			Stored: 91, Dropped: map[usage.Reason]uint64{usage.Room: 92}, Failed: 93, Waiting: 94,
			Oldest: 95500 * time.Millisecond, Rows: 96, DroppedCounts: 97,
		}),
	)
	return s
}

// of returns numbers that stay as they are.
func of[T any](numbers T) prometheus.Collector { return Read(func() T { return numbers }) }

func withNumbers(numbers ...prometheus.Collector) *Metrics {
	return New("1", Sources{Numbers: numbers})
}
