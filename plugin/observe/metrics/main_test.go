package metrics

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/leaktest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
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
	return Sources{
		Process: func() Process {
			return Process{
				Instances: 3, Events: 1000, Questions: 2001, Writes: 1002, Panics: 4, Undecided: 5,
				UnknownInstances: 6, ConfigFaults: 7, MetaDenied: 8,
			}
		},
		Buckets: func() Buckets { return Buckets{Kept: 11, Expired: 12, Evicted: 13} },
		Policies: func() Policies {
			return Policies{
				Connected: true, Version: 31, AgeSeconds: 3.5, PropagationSeconds: 0.25,
				Rows: 32, Faults: 33, Loads: 34, CatchUps: 35, Saves: 36,
			}
		},
		Stores: func() []Store {
			return []Store{{
				Name: "redis:6379", Degraded: true, DegradedSeconds: 21.5, Waiting: 22, Charged: 23, WrittenOff: 24,
				Foreign: 25, Taken: 26, LostRefunds: 27, LostSettlements: 84, RoundTrips: 28,
				LiveNodes: map[string]int{"default": 3, "eu": 2},
				Leases: Leases{
					FromLease: 61, FromMemory: 62, FromStore: 63, Renewals: 64, Failed: 71, Refunds: 65,
					Held: 72, Out: 66, Granted: 67, Spent: 68, Returned: 69, Expired: 70,
				},
				Addresses: Addresses{Own: 73, Prefix: 74, Local: 75, Kept: 76, Most: 77, Rate: 78, LogBytes: 79, MostLogBytes: 80},
			}}
		},
		Reservations: func() Reservations {
			return Reservations{
				Kept: 81, Parked: 85, Unknown: 82, Unrecorded: 86, Elsewhere: 87, Abandoned: 88, Unreserved: 83,
			}
		},

		Limits:    func() []Limit { return []Limit{{"minute", "gold", 600}, {"shared", "", 9000}} },
		Overrides: func() Overrides { return Overrides{Bans: 41, Exemptions: 42, Limits: 43, Penalties: 44} },
		LogLines:  func() map[string]uint64 { return map[string]uint64{"warn": 54, "error": 55} },
		Denial: func() Denial {
			return Denial{Sinks: []DenialSink{
				{Name: "file", Written: 51, Dropped: map[string]uint64{"queue_full": 52}, Queued: 53, Failing: true},
			}}
		},
		Shares: func() Shares { return Shares{Limits: 101, Leads: 102, Tenants: 103, Failed: 104} },
		Candidate: func() Candidate {
			return Candidate{
				Open: true, Active: CandidateResults{105, 106}, Candidate: CandidateResults{107, 108},
				Enforced: CandidateResults{109, 110}, Dropped: map[string]uint64{"queue": 113}, Failed: 114, Waiting: 115,
				AgeSeconds: 116.5,
			}
		},
		Usage: func() Usage {
			return Usage{
				Stored: 91, Dropped: map[string]uint64{"room": 92}, Failed: 93, Waiting: 94, OldestSeconds: 95.5, Rows: 96,
				DroppedCounts: 97,
			}
		},
	}
}
