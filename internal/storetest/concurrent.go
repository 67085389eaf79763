package storetest

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/soak"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// inParallel runs f n times at once, and waits for all.
func inParallel(n int, f func(i int)) {
	var ready, done sync.WaitGroup
	start := make(chan struct{})
	for i := range n {
		ready.Add(1)
		done.Go(func() {
			ready.Done()
			<-start
			f(i)
		})
	}
	ready.Wait()
	close(start)
	done.Wait()
}

func lastTokenIsGivenOnce(t *testing.T, f *fixture) { lastToken(t, f, 1) }

func lastTokenIsNotGivenTwice(t *testing.T, f *fixture) { lastToken(t, f, 0) }

// lastToken lets callers take the last token of a bucket at once. It checks that at least this number of them and at
// most one gets it, and that the others spend nothing.
func lastToken(t *testing.T, f *fixture, least int) {
	const callers = 8
	for round := range soak.Count(25, 100) {
		bounds := []policy.Bound{fixed(t, fmt.Sprint("tenant-", round), 1), fixed(t, fmt.Sprint("user-", round), 5)}
		var l ledger
		inParallel(callers, func(int) { f.record(t, &l, bounds) })
		given := len(l.entries[bounds[0].Key])
		if given < least || given > 1 {
			t.Fatalf("round %d: the last token was given to %d of %d", round, given, callers)
		}
		f.expect(t, fmt.Sprintf("after round %d", round), bounds, int64(given), int64(given))
	}
}

// ledger records admissions from many goroutines.
type ledger struct {
	mu      sync.Mutex
	entries map[policy.Key][]limit.Admission
}

// overlappingRequests lets callers take the same buckets in different orders and numbers while the clock advances. A
// store that locks bucket by bucket would deadlock, and one without locks would admit too much.
func overlappingRequests(t *testing.T, f *fixture) {
	const callers, most = 8, 300
	requests := soak.Count(100, most) // in the same time
	var all []policy.Bound
	for _, algorithm := range Algorithms {
		all = append(all, bound(t, algorithm.String(), limit.Spec{
			Algorithm: algorithm, Quantity: 50, Window: limit.Second, Burst: burst(algorithm, 20),
		}))
	}
	var l ledger
	inParallel(callers, func(caller int) {
		for i := range requests {
			var bounds []policy.Bound
			for j := range 1 + (caller+i)%len(all) {
				bounds = append(bounds, all[(caller*3+i+j*(1+caller%2))%len(all)])
			}
			if i%20 == 0 {
				bounds = append(bounds, bounds[0])
			}
			f.record(t, &l, bounds)
			f.Advance(limit.Micros((100 + 37*caller) * most / requests))
		}
	})
	for _, b := range all {
		if len(l.entries[b.Key]) == 0 {
			t.Errorf("%s admitted nothing", b.Policy.Name)
		}
		if err := (Bound{Limit: &b.Policy.Limit}).Check(l.entries[b.Key]); err != nil {
			t.Error(err)
		}
	}
}

// record takes the bounds. If they admit, it adds each to the ledger.
func (f *fixture) record(t *testing.T, l *ledger, bounds []policy.Bound) {
	statuses := make([]decision.Status, len(bounds))
	if err := f.Take(context.Background(), bounds, statuses); err != nil {
		t.Errorf("take %d bounds: %v", len(bounds), err)
		return
	}
	if !admitted(bounds, statuses) {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.entries == nil {
		l.entries = map[policy.Key][]limit.Admission{}
	}
	for i, b := range bounds {
		l.entries[b.Key] = append(l.entries[b.Key], limit.Admission{At: statuses[i].Now, Cost: b.Cost})
	}
}
