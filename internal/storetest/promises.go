package storetest

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

func deniedRequestSpendsNoScope(t *testing.T, f *fixture) {
	for place := range 3 { // the scope that denies is first, between and last
		var bounds []policy.Bound
		for _, name := range []string{"first-", "second-", "third-"} {
			bounds = append(bounds, fixed(t, fmt.Sprint(name, place), 10))
		}
		bounds[place].Cost = 10
		f.take(t, bounds[place])
		bounds[place].Cost = 1
		want := []int64{0, 0, 0}
		want[place] = 10
		for range 5 {
			if f.admits(t, bounds...) {
				t.Fatal("a request was admitted by an empty bucket")
			}
		}
		f.expect(t, fmt.Sprintf("after denials by scope %d", place), bounds, want...)
	}
}

// perHour returns the spec of n tokens an hour, with a burst of as many.
func perHour(algorithm limit.Algorithm, n int64) limit.Spec {
	return limit.Spec{Algorithm: algorithm, Quantity: n, Window: hour, Burst: burst(algorithm, n)}
}

// burst returns n for the algorithms that have a burst, and 0 for others.
func burst(algorithm limit.Algorithm, n int64) int64 {
	if algorithm == limit.TokenBucket || algorithm == limit.LeakyBucket {
		return n
	}
	return 0
}

func denialEndsAfterItsWait(t *testing.T, f *fixture) {
	for _, algorithm := range Algorithms {
		b := bound(t, algorithm.String(), perHour(algorithm, 4))
		f.take(t, withCost(b, 4))
		wait := f.take(t, withCost(b, 2))[0].Wait
		if wait <= 0 || wait > 2*hour {
			t.Fatalf("%s: wait is %d", algorithm, wait)
		}
		f.Advance(wait - 1)
		if got := f.take(t, withCost(b, 2))[0].Wait; got != 1 {
			t.Errorf("%s: a microsecond before, wait is %d", algorithm, got)
		}
		f.Advance(1)
		if got := f.take(t, withCost(b, 2))[0].Wait; got != 0 {
			t.Errorf("%s: after that wait, wait is %d", algorithm, got)
		}
	}
}

func costAboveCapacityIsNeverAdmitted(t *testing.T, f *fixture) {
	bounds := []policy.Bound{fixed(t, "small", 10), fixed(t, "large", 1000)}
	bounds[0].Cost, bounds[1].Cost = 11, 11
	statuses := f.take(t, bounds...)
	if statuses[0].Wait != limit.Never || statuses[1].Wait != 0 {
		t.Errorf("waits are %d and %d: want never and 0", statuses[0].Wait, statuses[1].Wait)
	}
	bounds[0].Cost = 1 << 62
	if f.admits(t, bounds...) {
		t.Error("a cost of 2^62 was admitted")
	}
	f.expect(t, "after costs above the capacity", bounds, 0, 0)
}

func costZeroReads(t *testing.T, f *fixture) {
	bounds := []policy.Bound{fixed(t, "read", 10), fixed(t, "spent", 10)}
	bounds[0].Cost = 0
	for i := range 3 {
		statuses := f.take(t, bounds...)
		if statuses[0].Used != 0 || statuses[1].Used != int64(i+1) {
			t.Fatalf("request %d: used %d and %d", i, statuses[0].Used, statuses[1].Used)
		}
	}
	empty := fixed(t, "empty", 1)
	f.take(t, empty)
	if !f.admits(t, withCost(empty, 0)) {
		t.Error("a read was denied")
	}
}

func shadowNeverDenies(t *testing.T, f *fixture) {
	for _, mode := range []policy.Mode{policy.Shadow, policy.Log} {
		name := mode.String()
		shadow, enforced := withMode(fixed(t, name, 1), mode), fixed(t, "beside-"+name, 10)
		for i := range 5 {
			statuses := f.take(t, shadow, enforced)
			if !statuses[1].Admits() || statuses[0].Admits() != (i == 0) {
				t.Fatalf("%s, request %d: waits are %d and %d", name, i, statuses[0].Wait, statuses[1].Wait)
			}
		}
		f.expect(t, "after 5 requests", []policy.Bound{shadow, enforced}, 1, 5)
	}
}

func shadowIsSpentAlone(t *testing.T, f *fixture) {
	empty, roomy := withMode(fixed(t, "empty", 1), policy.Shadow), withMode(fixed(t, "roomy", 10), policy.Shadow)
	f.take(t, empty)
	f.take(t, empty, roomy)
	f.expect(t, "when another shadow denies", []policy.Bound{empty, roomy}, 1, 1)
	if used := f.used(t, withMode(roomy, policy.Enforce)); used != 1 {
		t.Errorf("once enforced, its bucket counts %d, want 1", used)
	}
}

func shadowIsNotSpentByADeniedRequest(t *testing.T, f *fixture) {
	shadow, enforced := withMode(fixed(t, "shadow", 10), policy.Shadow), fixed(t, "enforced", 1)
	f.take(t, shadow, enforced)
	statuses := f.take(t, shadow, enforced)
	if !statuses[0].Admits() || statuses[1].Admits() {
		t.Errorf("waits are %d and %d: want that of the shadow 0", statuses[0].Wait, statuses[1].Wait)
	}
	f.expect(t, "after a denial", []policy.Bound{shadow, enforced}, 1, 1)
}

// shadowAndEnforcedInOneBucket checks that a candidate in shadow, which during a rollout spends from the bucket of the
// enforced policy, does not spend the tokens of the enforced bound.
func shadowAndEnforcedInOneBucket(t *testing.T, f *fixture) {
	enforced := fixed(t, "rollout", 3)
	shadow := withMode(enforced, policy.Shadow)
	for _, order := range [][]policy.Bound{{shadow, enforced}, {enforced, shadow}} {
		f.Advance(2 * hour)
		if !f.admits(t, order...) || f.used(t, enforced) != 2 {
			t.Errorf("after one request, used is %d: want both counted", f.used(t, enforced))
		}
		if !f.admits(t, order...) || f.used(t, enforced) != 3 {
			t.Errorf("after two requests, used is %d: want 3, the last by the enforced one", f.used(t, enforced))
		}
		if f.admits(t, order...) {
			t.Error("a third request found a token")
		}
	}
}

func twoBoundsOfOneBucket(t *testing.T, f *fixture) {
	for _, algorithm := range Algorithms {
		b := bound(t, algorithm.String(), perHour(algorithm, 5))
		pair := []policy.Bound{b, b}
		for want := int64(2); want <= 4; want += 2 {
			statuses := f.take(t, pair...)
			if !admitted(pair, statuses) || statuses[0].Used != want || statuses[1].Used != want {
				t.Fatalf("%s: %+v: want both admitted, and %d used", algorithm, statuses, want)
			}
		}
		statuses := f.take(t, pair...)
		if !statuses[0].Admits() || statuses[1].Admits() {
			t.Errorf("%s: with one token left, waits are %d and %d", algorithm, statuses[0].Wait, statuses[1].Wait)
		}
		f.expect(t, "after a denial of both", []policy.Bound{b}, 4)
		if !f.admits(t, b) {
			t.Errorf("%s: the last token cannot be spent", algorithm)
		}
	}
}

func twoBoundsThatNeverFit(t *testing.T, f *fixture) {
	b := withCost(fixed(t, "pair", 5), 3)
	statuses := f.take(t, b, b)
	if statuses[0].Wait != 0 || statuses[1].Wait != limit.Never {
		t.Errorf("waits for 3 + 3 of 5 are %d and %d: want 0 and never", statuses[0].Wait, statuses[1].Wait)
	}
	softOnly := limit.Spec{Algorithm: limit.FixedWindow, Quantity: 5, Window: hour, SoftOnly: true}
	statuses = f.take(t, withCost(bound(t, "pair", softOnly), math.MaxInt64), b)
	if statuses[0].Wait != 0 || statuses[1].Wait != limit.Never {
		t.Errorf("waits for costs that overflow in sum are %d and %d: want 0 and never",
			statuses[0].Wait, statuses[1].Wait)
	}
}

func keysShareNoBucket(t *testing.T, f *fixture) {
	base := fixed(t, "policy", 1)
	keys := []func(*policy.Key){
		func(*policy.Key) {},
		func(k *policy.Key) { k.Namespace = "other" },
		func(k *policy.Key) { k.Policy = "other" },
		func(k *policy.Key) { k.Group = policy.ByIP },
		func(k *policy.Key) { k.Group = policy.ByEndpoint },
		func(k *policy.Key) { k.Group, k.GroupID = policy.ByAll, "" },
		func(k *policy.Key) { k.GroupID = "other" },
		func(k *policy.Key) { k.GroupID = "ACME" },
		func(k *policy.Key) { k.Kind, k.Subject = policy.KindUser, "u" },
		func(k *policy.Key) { k.Kind, k.Subject = policy.KindCredential, "u" },
		func(k *policy.Key) { k.Kind, k.Subject = policy.KindIP, "u" },
		func(k *policy.Key) { k.Kind, k.Subject = policy.KindUser, "v" },
		func(k *policy.Key) { k.Endpoint = "GET /a" },
		func(k *policy.Key) { k.Endpoint = "GET /b" },
		func(k *policy.Key) { k.Kind, k.Subject, k.Endpoint = policy.KindUser, "u", "GET /a" },
	}
	for i, change := range keys {
		b := base
		change(&b.Key)
		if !f.admits(t, b) {
			t.Errorf("key %d shares its bucket with another: %+v", i, b.Key)
		}
		if f.admits(t, b) {
			t.Errorf("key %d has more than its one token: %+v", i, b.Key)
		}
	}
}

// hostileNamesShareNoBucket checks that no name contains a valid separator of the parts of a stored key. Names come
// from clients.
func hostileNamesShareNoBucket(t *testing.T, f *fixture) {
	names := []string{
		"a", "b", "a:b", "a%3Ab", "a%3ab", "{a}", "{t=a}", "}{", "a\x00", "a\x00b", "\xff\xfe", "�", "é", "e\u0301",
		"a b", "a+b", "a%20b", "a/b", "a|b", "a=b", "a,b", "*", "\n", "\r\n",
		strings.Repeat("x", 128), strings.Repeat("x", 129), strings.Repeat("x", 100_000),
	}
	base := fixed(t, "policy", 1)
	for _, group := range names {
		for _, subject := range slices.Concat(names, []string{""}) {
			b := base
			b.Key.GroupID, b.Key.Kind, b.Key.Subject = group, policy.KindUser, subject
			if subject == "" {
				b.Key.Kind = policy.WholeGroup
			}
			if !f.admits(t, b) {
				t.Fatalf("group %.40q and subject %.40q share their bucket with another", group, subject)
			}
		}
	}
}

func manyBounds(t *testing.T, f *fixture) {
	const n = 40
	var bounds []policy.Bound
	for i := range n {
		bounds = append(bounds, fixed(t, fmt.Sprint("policy-", i), int64(3+i)))
	}
	for range 3 {
		if !f.admits(t, bounds...) {
			t.Fatal("denied with tokens in every bucket")
		}
	}
	if f.admits(t, bounds...) {
		t.Error("admitted with the first bucket empty")
	}
	f.expect(t, "after 3 admissions", bounds[n-1:], 3)
}

func noBounds(t *testing.T, f *fixture) {
	if !f.admits(t) {
		t.Error("a request without bounds was denied")
	}
}
