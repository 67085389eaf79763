// Package storetest tests the promises of a store of buckets. Every store runs the suite [Run]. The package also has
// the promise of a limit over any interval ([Bound]), a simple reference store ([Model]), a clock that tests advance
// ([ManualClock]), and generators of limits and timelines for property tests.
//
// Package limit tests single limits. The package of each store tests its memory and its network.
package storetest

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/store"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// Clock is the clock of the store under test. The store must use no other clock, and must read it while nothing else
// can spend from the buckets that it decides. Otherwise a request that is overtaken is recorded at an instant before
// that of its bucket, and the interval up to it may see more than the bound.
type Clock interface {
	Now() limit.Micros
	Advance(by limit.Micros) // negative: the clock steps back
}

// Open returns an empty store, which the suite uses until the test t ends.
type Open func(t *testing.T) (store.Store, Clock)

// ManualClock is a clock that stands still until Advance. It is safe for concurrent use.
type ManualClock struct{ now atomic.Int64 }

// NewClock returns a clock that shows Start.
func NewClock() *ManualClock {
	var c ManualClock
	c.now.Store(int64(Start))
	return &c
}

// Now returns the instant that the clock shows.
func (c *ManualClock) Now() limit.Micros { return limit.Micros(c.now.Load()) }

// Advance moves the clock.
func (c *ManualClock) Advance(by limit.Micros) { c.now.Add(int64(by)) }

type test struct {
	name string
	test func(t *testing.T, f *fixture)
}

var promises = []test{
	{"DeniedRequestSpendsNoScope", deniedRequestSpendsNoScope},
	{"DenialEndsAfterItsWaitAndNotBefore", denialEndsAfterItsWait},
	{"CostAboveCapacityIsNeverAdmittedAndSpendsNothing", costAboveCapacityIsNeverAdmitted},
	{"CostZeroReadsWithoutSpendingAlsoFromAnEmptyBucket", costZeroReads},
	{"ShadowNeverDenies", shadowNeverDenies},
	{"ShadowIsSpentAloneInTheBucketItWillHave", shadowIsSpentAlone},
	{"ShadowIsNotSpentByADeniedRequest", shadowIsNotSpentByADeniedRequest},
	{"ShadowSpendsOnlyTokensThatTheEnforcedBoundLeaves", shadowAndEnforcedInOneBucket},
	{"TwoBoundsOfOneBucketAreAdmittedTogetherOrNot", twoBoundsOfOneBucket},
	{"TwoBoundsOfOneBucketThatCanNeverFitWaitForever", twoBoundsThatNeverFit},
	{"KeysThatDifferInOnePartShareNoBucket", keysShareNoBucket},
	{"HostileNamesShareNoBucket", hostileNamesShareNoBucket},
	{"ManyBoundsAreDecidedTogether", manyBounds},
	{"NoBoundsAreAdmitted", noBounds},
	{"PeekShowsTheWaitsOfATakeAndSpendsNothing", peekShowsWaits},
	{"SettleReplacesWhatATakeSpentOnce", settleReplacesWhatWasSpent},
	{"SettleMayLeaveADebtThatDeniesUntilItIsPaidBack", settleMayLeaveADebt},
	{"SettleLeavesABucketOfAChangedLimitAsItIs", settleLeavesABucketOfAChangedLimit},
	{"ConcurrentSettlementsKeepTheBound", concurrentSettlementsKeepTheBound},
	{"ConcurrentSettlementsAddUp", concurrentSettlementsAddUp},
	{"SlotIsHeldUntilItsReleaseOrItsDeadline", slotIsHeldUntilItsReleaseOrDeadline},
	{"RequestsInFlightNeverExceedTheLimit", inFlightNeverExceedsTheLimit},
	{"StatusesThatDoNotFitTheBoundsAreAnError", statusesMustFit},
	{"OverlappingRequestsNeverDeadlockAndKeepEveryBound", overlappingRequests},
}

// keeperPromises are those of a store.Keeper.
var keeperPromises = []test{
	{"RefundReturnsWhatATakeSpentOnce", refundReturnsOnce},
	{"SettleChargesABucketThatWasDeletedAndReturnsNothingToIt", settleChargesABucketThatWasDeleted},
	{"ForgetEmptiesTheBucketsOfItsKeysAlone", forgetEmptiesItsKeysAlone},
}

// Run runs the suite for a store that decides a request at one instant.
func Run(t *testing.T, open Open) {
	RunPromises(t, open)
	t.Run("EveryTimelineIsDecidedAndSettledAsByTheModel", func(t *testing.T) {
		compareWithModel(t, open, samePlace, []policy.Group{policy.ByTenant})
	})
}

// RunPromises runs the suite without the random timelines, for a store whose decisions another test compares with the
// model, and which has here another transport of its requests.
func RunPromises(t *testing.T, open Open) {
	run(t, open, test{"LastTokenIsGivenOnce", lastTokenIsGivenOnce})
}

// RunApart runs the suite for a store that keeps the buckets of a request in several places. place returns the place of
// a bucket. Simultaneous requests can deny each other the last token, so that none gets it. A place that spends and
// refunds changes receipts; the model does the same.
func RunApart(t *testing.T, open Open, place Place) {
	run(t, open, test{"LastTokenIsNotGivenTwice", lastTokenIsNotGivenTwice})
	t.Run("EveryTimelineIsDecidedAndSettledAsByTheModel", func(t *testing.T) {
		compareWithModel(t, open, place, []policy.Group{policy.ByTenant, policy.ByTenant, policy.ByAll})
	})
}

// run runs the promises and the test of the last token.
func run(t *testing.T, open Open, last test) {
	tests := append(slices.Clip(promises), last)
	if one, _ := open(t); (&fixture{Store: one}).keeper() != nil {
		tests = append(tests, keeperPromises...)
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			opened, clock := open(t)
			test.test(t, &fixture{Store: opened, Clock: clock})
		})
	}
}

// fixture is an empty store with its clock, and helpers of the tests.
type fixture struct {
	store.Store
	Clock
}

// keeper returns the store as one that keeps the buckets itself; nil: it does not.
func (f *fixture) keeper() store.Keeper {
	keeper, _ := f.Store.(store.Keeper)
	return keeper
}

// bound returns a bound of a limit that costs 1 from the bucket of tenant acme.
func bound(t *testing.T, name string, spec limit.Spec) policy.Bound {
	t.Helper()
	l, err := limit.New(spec)
	if err != nil {
		t.Fatalf("compile the limit of %s: %v", name, err)
	}
	return policy.Bound{
		Policy: &policy.Policy{Name: name, Scope: policy.Tenant, Limit: l, Cost: -1},
		Key: policy.Key{
			Namespace: "default", Policy: name, Group: policy.ByTenant, GroupID: "acme", Slots: l.IsConcurrency(),
		},
		Cost: 1,
	}
}

// fixed returns a bound of quantity tokens an hour, in fixed windows.
func fixed(t *testing.T, name string, quantity int64) policy.Bound {
	return bound(t, name, limit.Spec{Algorithm: limit.FixedWindow, Quantity: quantity, Window: hour})
}

const hour = 3600 * limit.Second

func withMode(b policy.Bound, mode policy.Mode) policy.Bound {
	p := *b.Policy
	p.Mode = mode
	b.Policy = &p
	return b
}

func withCost(b policy.Bound, cost int64) policy.Bound {
	b.Cost = cost
	return b
}

// take takes the bounds, and returns their statuses.
func (f *fixture) take(t *testing.T, bounds ...policy.Bound) []decision.Status {
	t.Helper()
	return f.decide(t, f.Take, bounds)
}

// peek peeks at the bounds, and returns their statuses.
func (f *fixture) peek(t *testing.T, bounds ...policy.Bound) []decision.Status {
	t.Helper()
	return f.decide(t, f.Peek, bounds)
}

// decide has the bounds decided, and returns their statuses, which must be filled in.
func (f *fixture) decide(t *testing.T, decide decide, bounds []policy.Bound) []decision.Status {
	t.Helper()
	statuses := make([]decision.Status, len(bounds))
	if err := decide(context.Background(), bounds, statuses); err != nil {
		t.Fatalf("decide %d bounds: %v", len(bounds), err)
	}
	for i := range statuses {
		if statuses[i].Now != f.Now() || statuses[i].Source == decision.Unanswered {
			t.Fatalf("status %d of %d at %d is not filled in: %+v", i, len(bounds), f.Now(), statuses[i])
		}
	}
	return statuses
}

// used returns the used tokens of the bound's bucket, without spending.
func (f *fixture) used(t *testing.T, b policy.Bound) int64 {
	t.Helper()
	return f.peek(t, b)[0].Used
}

// admits takes the bounds and reports whether all enforced ones admit.
func (f *fixture) admits(t *testing.T, bounds ...policy.Bound) bool {
	t.Helper()
	return admitted(bounds, f.take(t, bounds...))
}

// admitted reports whether all enforced bounds admit.
func admitted(bounds []policy.Bound, statuses []decision.Status) bool {
	for i := range bounds {
		if bounds[i].Enforced() && !statuses[i].Admits() {
			return false
		}
	}
	return true
}

// expect fails the test unless each bucket has the wanted number of used tokens.
func (f *fixture) expect(t *testing.T, when string, bounds []policy.Bound, want ...int64) {
	t.Helper()
	var got []string
	ok := true
	for i, b := range bounds {
		used := f.used(t, b)
		ok = ok && used == want[i]
		got = append(got, b.Policy.Name+"="+strconv.FormatInt(used, 10))
	}
	if !ok {
		t.Errorf("%s, used is %s; want %s", when, strings.Join(got, " "), fmt.Sprint(want))
	}
}
