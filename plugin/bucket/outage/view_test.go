package outage

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

func TestWhileAllAnswerTheFallbackIsNotUsed(t *testing.T) {
	w := newWorld(Options{}, StoreOptions{})
	b := bound(t, policy.FailLocal, 2, "acme")
	for i, want := range []bool{true, true, false} {
		statuses, admitted := w.take(t, b)
		if admitted != want || statuses[0].Source != decision.Redis || statuses[0].Charged != want {
			t.Errorf("request %d: admitted %v, %+v", i, admitted, statuses[0])
		}
	}
	if stats := w.store.Stats(); w.fallback.Stats().Buckets != 0 || len(stats.Policies) != 0 ||
		len(stats.Activations) != 0 {
		t.Errorf("%+v, %d buckets in the fallback, want nothing", stats, w.fallback.Stats().Buckets)
	}
}

func TestALocalPolicyGoesOnWithThisNodesShare(t *testing.T) {
	w := newWorld(Options{}, StoreOptions{Nodes: 2, SharePct: 60})
	w.servers.set("acme", unreachable)
	b := bound(t, policy.FailLocal, 10, "acme")
	for i := range 5 {
		statuses, admitted := w.take(t, b)
		if s := statuses[0]; admitted != (i < 3) || s.Source != decision.Local || s.Failure != decision.Unavailable ||
			s.Charged != admitted {
			t.Errorf("request %d: admitted %v, %+v, want 3 of 10 × 60 %% ÷ 2", i, admitted, s)
		}
	}
	stats := w.store.Stats()
	want := Tally{Unverified: 3, DeniedLocally: 2}
	if stats.Policies["local"] != want || stats.Pending != 3 || stats.Buckets != 1 ||
		stats.Activations[decision.Unavailable] != 5 {
		t.Errorf("%+v, want %+v", stats, want)
	}
}

func TestAnyNumberOfNodesLeavesEachAToken(t *testing.T) {
	for _, nodes := range []int{1_000_000, math.MaxInt / 100, math.MaxInt/2 + 1, math.MaxInt} {
		w := newWorld(Options{}, StoreOptions{Nodes: nodes})
		w.servers.set("acme", unreachable)
		b := bound(t, policy.FailLocal, 10, "acme")
		for i, want := range []bool{true, false} {
			if statuses, admitted := w.take(t, b); admitted != want {
				t.Errorf("%d nodes, request %d: admitted %v, %+v", nodes, i, admitted, statuses[0])
			}
		}
	}
}

func TestTwoFailModesInOneRequest(t *testing.T) {
	w := newWorld(Options{}, StoreOptions{})
	w.servers.set("acme", unreachable)
	local, closed, elsewhere := bound(t, policy.FailLocal, 10, "acme"), bound(t, policy.FailClosed, 10, "acme"),
		bound(t, policy.FailLocal, 9, "globex")
	statuses, admitted := w.take(t, elsewhere, local, closed)
	if admitted || statuses[2].Source != decision.Unanswered {
		t.Fatalf("admitted %v, %+v, want the closed policy to deny", admitted, statuses)
	}
	if s := statuses[1]; s.Source != decision.Local || s.Charged || s.Used != 0 || !s.Admits() {
		t.Errorf("the local policy's status is %+v, want one that was peeked at", s)
	}
	if statuses[0].Charged || w.servers.refunds != 1 || w.servers.spent["local"] != 0 {
		t.Errorf("what answered was not given back: %+v", statuses[0])
	}
	if stats := w.store.Stats(); stats.Policies["closed"].DeniedClosed != 1 || stats.Pending != 0 ||
		stats.Policies["local"] != (Tally{}) {
		t.Errorf("%+v", stats)
	}
	if _, admitted := w.take(t, elsewhere, local); !admitted {
		t.Error("without the closed policy the request is denied")
	}
}

func TestAnAnswerThatDeniesGoesBeforeAllFailModes(t *testing.T) {
	w := newWorld(Options{}, StoreOptions{})
	w.servers.set("acme", unreachable)
	full := bound(t, policy.FailOpen, 1, "globex")
	w.take(t, full)
	statuses, admitted := w.take(t, bound(t, policy.FailLocal, 10, "acme"), bound(t, policy.FailClosed, 10, "acme"), full)
	if admitted || statuses[2].Admits() || statuses[0].Source != decision.Unanswered || w.fallback.Stats().Buckets != 0 {
		t.Errorf("%+v, want only the answer to count", statuses)
	}
	w.take(t, full, bound(t, policy.FailLocal, 10, "acme"))
	if stats := w.store.Stats(); len(stats.Policies) != 0 || stats.Activations[decision.Unavailable] != 2 {
		t.Errorf("booked %+v, want two activations and nothing else", stats)
	}
}

func TestAShadowPolicyIsNotDecidedLocally(t *testing.T) {
	w := newWorld(Options{}, StoreOptions{})
	w.servers.set("acme", unreachable)
	b := bound(t, policy.FailLocal, 1, "acme")
	b.Policy.Mode = policy.Shadow
	statuses, admitted := w.take(t, b)
	if !admitted || statuses[0].Source != decision.Unanswered || w.store.Stats().Pending != 0 {
		t.Errorf("%+v", statuses[0])
	}
}

func TestABucketStartsWithTheFractionThatWasLastSeen(t *testing.T) {
	bucket := limit.Spec{Algorithm: limit.TokenBucket, Quantity: 100, Window: 100 * limit.Second}
	tests := []struct {
		name  string
		spec  limit.Spec
		spent int64
		after limit.Micros
		want  int64
	}{
		{"unseen", bucket, 0, 0, 0},
		{"half used", bucket, 50, 0, 35},
		{"used up", bucket, 100, 0, 70},
		{"half refilled since", bucket, 100, 50 * limit.Second, 35},
		{"a new window", limit.Spec{Algorithm: limit.FixedWindow, Quantity: 100, Window: minute}, 100, minute, 0},
		{"less than one token of the share", limit.Spec{Algorithm: limit.FixedWindow, Quantity: 2, Window: minute}, 1, 0, 0},
		{"a log", limit.Spec{Algorithm: limit.SlidingLog, Quantity: 10, Window: minute}, 5, minute - 1, 3},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(Options{}, StoreOptions{})
			b := bound(t, policy.FailLocal, 1, "acme")
			b.Policy.Limit = compiled(t, test.spec)
			if b.Cost = test.spent; test.spent > 0 {
				w.take(t, b)
			}
			w.servers.set("acme", unreachable)
			w.clock.Advance(test.after)
			b.Cost = 0
			statuses, _ := w.take(t, b)
			assert.True(t, statuses[0].Used == test.want, "%d used, want %d", statuses[0].Used, test.want)
		})
	}
}

func TestACostBeyondTheShareWaitsForTheStoreAndNotForever(t *testing.T) {
	w := newWorld(Options{}, StoreOptions{})
	w.servers.set("acme", unreachable)
	b := bound(t, policy.FailLocal, 100, "acme")
	for cost, want := range map[int64]limit.Micros{100: limit.Second, 101: limit.Never} {
		b.Cost = cost
		statuses, _ := w.take(t, b)
		assert.True(t, statuses[0].Wait == want, "cost %d waits %d, want %d", cost, statuses[0].Wait, want)
	}
}

func TestTooManyWaitingRequestsFallBackUnsent(t *testing.T) {
	w := newWorld(Options{}, StoreOptions{})
	w.store.bulkhead = newBulkhead(7, 2)
	acme, globex, initech := bound(t, policy.FailOpen, 100, "acme"), bound(t, policy.FailOpen, 100, "globex"),
		bound(t, policy.FailOpen, 100, "initech")
	all := bound(t, policy.FailOpen, 100, "")
	all.Key.Group = policy.ByAll
	steps := []struct {
		bound policy.Bound
		sent  bool
	}{
		{acme, true},
		{acme, true},
		{acme, false},
		{globex, true},
		{globex, true},
		{all, true},
		{all, true},
		{all, true},
		{initech, false},
	}
	var got []string
	var nest func(i int)
	nest = func(i int) { // each request comes while all that were sent before it wait
		if i == len(steps) {
			return
		}
		sent := false
		w.servers.hook = func() {
			sent = true
			nest(i + 1)
		}
		statuses, _ := w.take(t, steps[i].bound)
		if !sent {
			nest(i + 1)
		}
		if overloaded := statuses[0].Failure == decision.Overloaded; sent != steps[i].sent || overloaded == sent {
			got = append(got, fmt.Sprintf("request %d: sent %v, %+v", i, sent, statuses[0]))
		}
	}
	nest(0)
	if len(got) > 0 {
		t.Error(strings.Join(got, "\n"))
	}
	w.servers.hook = nil
	if stats := w.store.Stats(); stats.Waiting != 0 || stats.Activations[decision.Overloaded] != 2 {
		t.Errorf("%+v, want none waiting, and 2 overloaded", stats)
	}
}

// misused is a central store whose calls are misuse.
type misused struct{ *servers }

var errMisuse = errors.New("misuse")

func (misused) Take(context.Context, []policy.Bound, []decision.Status) error { return errMisuse }

func TestMisuseIsAnErrorAndLeavesNoRequestWaiting(t *testing.T) {
	w := newWorld(Options{}, StoreOptions{})
	w.store.central = misused{w.servers}
	bounds := []policy.Bound{bound(t, policy.FailOpen, 1, "acme")}
	if err := w.view.Take(context.Background(), bounds, make([]decision.Status, 1)); !errors.Is(err, errMisuse) {
		t.Errorf("error is %v", err)
	}
	if err := w.view.Take(context.Background(), bounds, nil); err == nil {
		t.Error("no error without room for the status")
	}
	if err := w.view.Take(context.Background(), nil, nil); err != nil || w.store.Stats().Waiting != 0 {
		t.Errorf("%v for no bounds, %d waiting", err, w.store.Stats().Waiting)
	}
}

func TestWhatIsTakenLocallyIsThisNodesShareAndIsRecordedNowhereElse(t *testing.T) {
	w := newWorld(Options{}, StoreOptions{Nodes: 2, SharePct: 60})
	bounds, statuses := []policy.Bound{bound(t, policy.FailClosed, 10, "acme")}, make([]decision.Status, 1)
	take := func() decision.Status {
		t.Helper()
		require.NoError(t, w.view.Local().Take(t.Context(), bounds, statuses))
		return statuses[0]
	}
	for i := range 5 {
		if s := take(); s.Admits() != (i < 3) || s.Source != decision.Local || s.Failure != decision.NoFailure ||
			s.Charged != s.Admits() {
			t.Errorf("request %d: %+v, want 3 of 10 × 60 %% ÷ 2", i, s)
		}
	}
	if stats := w.store.Stats(); w.servers.takes != 0 || stats.Buckets != 0 || len(stats.Policies) != 0 ||
		len(stats.Activations) != 0 {
		t.Errorf("%d takes of the shared store, %+v: want nothing", w.servers.takes, stats)
	}
	w.clock.Advance(minute)
	take()
	if err := w.view.Local().Settle(t.Context(), bounds, statuses, nil); err != nil || statuses[0].Charged ||
		statuses[0].Used != 0 {
		t.Errorf("%+v, %v: want all given back", statuses[0], err)
	}
	bounds[0].Cost = 4
	if s := take(); s.Wait != limit.Second {
		t.Errorf("%+v: want a wait for what the share can never hold, and the limit can", s)
	}
}
