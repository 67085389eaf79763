// Package storetest tests what a store of buckets promises; every store runs it: [Run]. Beside the suite
// live the promise of a limit over any interval ([Bound]), a reference store that is slow and plain ([Model]), a clock
// that tests advance ([ManualClock]), and generators of limits and timelines for property tests.
//
// A single limit is tested in package limit; what only one store has (its memory, its network) in its own package.
package storetest

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
)

// Store is the store under test: an admit.Buckets.
type Store interface {
	Take(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error
}

// Clock is the clock of the store under test. The store must read its time from nowhere else.
type Clock interface {
	Now() limit.Micros
	Advance(by limit.Micros) // negative: the clock steps back
}

// Open returns an empty store, which the suite uses until the test t ends.
type Open func(t *testing.T) (Store, Clock)

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

// test is one promise.
type test struct {
	name string
	test func(t *testing.T, f *fixture)
}

var promises = []test{
	{"DeniedRequestSpendsNoScope", deniedRequestSpendsNoScope},
	{"AdmittedRequestSpendsEveryScope", admittedRequestSpendsEveryScope},
	{"EveryBoundReportsItsOwnWait", everyBoundReportsItsOwnWait},
	{"DenialEndsAfterItsWaitAndNotBefore", denialEndsAfterItsWait},
	{"CostAboveCapacityIsNeverAdmittedAndSpendsNothing", costAboveCapacityIsNeverAdmitted},
	{"CostZeroReadsWithoutSpending", costZeroReads},
	{"CostZeroIsAdmittedByAnEmptyBucket", costZeroIsAdmittedByAnEmptyBucket},
	{"ShadowNeverDenies", shadowNeverDenies},
	{"ShadowIsSpentAloneInTheBucketItWillHave", shadowIsSpentAlone},
	{"ShadowIsNotSpentByADeniedRequest", shadowIsNotSpentByADeniedRequest},
	{"ShadowBesideItsEnforcedTwinTakesOnlyWhatIsLeft", shadowBesideItsEnforcedTwin},
	{"TwoBoundsOfOneBucketMustFindRoomTogether", twoBoundsOfOneBucket},
	{"TwoBoundsOfOneBucketThatCanNeverFitWaitForever", twoBoundsThatNeverFit},
	{"KeysThatDifferInOnePartShareNoBucket", keysShareNoBucket},
	{"StrangeNamesShareNoBucket", strangeNamesShareNoBucket},
	{"TwoLimitsOfOneBucketSpendFromIt", twoLimitsOfOneBucket},
	{"ManyBoundsAreDecidedTogether", manyBounds},
	{"NoBoundsAreAdmitted", noBounds},
	{"OverlappingRequestsNeverWaitForEachOtherAndKeepEveryBound", overlappingRequests},
}

// Run runs the suite for a store that decides a request at one instant.
func Run(t *testing.T, open Open) {
	run(t, open, test{"LastTokenIsGivenOnce", lastTokenIsGivenOnce})
	t.Run("EveryTimelineIsDecidedAsTheModelDecidesIt", func(t *testing.T) {
		lockstep(t, open, onePlace, []policy.Group{policy.ByTenant})
	})
}

// RunApart runs the suite for a store that keeps the buckets of a request in several places, which it asks at once.
// Place names where a bucket is. Requests at the same time can deny each other the last token, and none gets it. What
// one place spends and refunds leaves traces, such as another receipt; the model leaves the same.
func RunApart(t *testing.T, open Open, place Place) {
	run(t, open, test{"LastTokenIsNotGivenTwice", lastTokenIsNotGivenTwice})
	t.Run("EveryTimelineIsDecidedAsTheModelDecidesIt", func(t *testing.T) {
		lockstep(t, open, place, []policy.Group{policy.ByTenant, policy.ByTenant, policy.ByAll})
	})
}

func run(t *testing.T, open Open, last test) {
	for _, test := range append(slices.Clip(promises), last) {
		t.Run(test.name, func(t *testing.T) {
			store, clock := open(t)
			test.test(t, &fixture{Store: store, Clock: clock})
		})
	}
}

// fixture is one empty store and the words that the tests use.
type fixture struct {
	Store
	Clock
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
		Key:    policy.Key{Namespace: "default", Policy: name, Group: policy.ByTenant, GroupID: "acme"},
		Cost:   1,
	}
}

// fixed returns a bound of so many tokens an hour, in fixed windows.
func fixed(t *testing.T, name string, quantity int64) policy.Bound {
	return bound(t, name, limit.Spec{Algorithm: limit.FixedWindow, Quantity: quantity, Window: hour})
}

const hour = 3600 * limit.Second

// withMode returns b under a policy of another mode.
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
	statuses := make([]decision.Status, len(bounds))
	if err := f.Take(context.Background(), bounds, statuses); err != nil {
		t.Fatalf("take %d bounds: %v", len(bounds), err)
	}
	for i := range statuses {
		if statuses[i].Now != f.Now() || statuses[i].Source == decision.Unanswered {
			t.Fatalf("status %d of %d at %d is not filled in: %+v", i, len(bounds), f.Now(), statuses[i])
		}
	}
	return statuses
}

// used returns what the bound's bucket counts, without spending.
func (f *fixture) used(t *testing.T, b policy.Bound) int64 {
	t.Helper()
	return f.take(t, withCost(b, 0))[0].Used
}

// admits takes the bounds and reports whether all enforced ones admit.
func (f *fixture) admits(t *testing.T, bounds ...policy.Bound) bool {
	t.Helper()
	return admitted(bounds, f.take(t, bounds...))
}

func admitted(bounds []policy.Bound, statuses []decision.Status) bool {
	for i := range bounds {
		if bounds[i].Enforced() && !statuses[i].Admits() {
			return false
		}
	}
	return true
}

// expect fails the test unless each bucket counts what is wanted.
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
