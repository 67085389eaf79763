package outage

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/leaktest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/storetest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/memory"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/store"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

const minute = 60 * limit.Second

// condition is how a server of the central store behaves.
type condition uint8

const (
	up          condition = iota
	unreachable           // nothing is sent
	silent                // no answer in time; nothing was run
	deaf                  // no answer in time, but it was run
	foreign               // the keys hold something else
)

var failureOf = [...]decision.Failure{
	up: decision.NoFailure, unreachable: decision.Unavailable, silent: decision.TimedOut, deaf: decision.TimedOut,
	foreign: decision.WrongType,
}

var errUnavailable = errors.New("unavailable")

// servers is a central store of several servers: each tenant's buckets are on a server of its own, which can
// be unavailable.
type servers struct {
	clock *storetest.ManualClock

	mu          sync.Mutex
	is          map[string]condition // by tenant
	states      map[policy.Key]limit.State
	before      map[policy.Key]limit.State // what the last take has changed
	spent       map[string]int64           // tokens, by policy: of enforced bounds that were answered
	unknown     map[string]int64           // of those that were not
	takes       int
	settlements int
	refunds     int
	probes      int

	beats map[string]string // node by namespace
	live  int
	gate  *Breaker // of all servers; may be nil
	hook  func()   // runs before each take
}

func newServers(clock *storetest.ManualClock) *servers {
	return &servers{
		clock: clock, is: map[string]condition{}, states: map[policy.Key]limit.State{}, spent: map[string]int64{},
		unknown: map[string]int64{}, beats: map[string]string{}, live: 1,
	}
}

func (s *servers) set(tenant string, c condition) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.is[tenant] = c
}

// Take implements Shared.
func (s *servers) Take(_ context.Context, bounds []policy.Bound, statuses []decision.Status) error {
	s.call(bounds, statuses, func(now limit.Micros) {
		s.before = map[policy.Key]limit.State{}
		denied := s.check(bounds, statuses, now)
		for i := range bounds {
			s.spend(&bounds[i], &statuses[i], denied, now)
		}
	})
	return nil
}

// Peek implements Shared.
func (s *servers) Peek(_ context.Context, bounds []policy.Bound, statuses []decision.Status) error {
	s.call(bounds, statuses, func(now limit.Micros) {
		s.check(bounds, statuses, now)
		for i := range bounds {
			if statuses[i].Source == decision.Redis {
				state := s.state(&bounds[i], now)
				statuses[i].Status = bounds[i].Policy.Limit.Status(&state, now)
			}
		}
	})
	return nil
}

// call decides a request unless the gate holds it back.
func (s *servers) call(bounds []policy.Bound, statuses []decision.Status, decide func(now limit.Micros)) {
	if s.hook != nil {
		s.hook()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gate != nil {
		if wait, ok := s.gate.Enter(); !ok {
			for i := range statuses {
				statuses[i] = decision.Status{Failure: decision.Unavailable, Wait: limit.Micros(wait.Microseconds())}
			}
			return
		}
		defer func() { s.gate.Leave(0, s.is[bounds[0].Key.GroupID] != up) }()
	}
	s.takes++
	decide(s.clock.Now())
}

// check fills in the waits of the servers that answer, and reports whether one denies.
func (s *servers) check(bounds []policy.Bound, statuses []decision.Status, now limit.Micros) (denied bool) {
	clear(statuses)
	for i := range bounds {
		b := &bounds[i]
		statuses[i].Now = now
		if c := s.is[b.Key.GroupID]; c != up {
			statuses[i].Failure, statuses[i].Wait = failureOf[c], limit.Second
			continue
		}
		statuses[i].Source = decision.Redis
		state := s.state(b, now)
		statuses[i].Wait = b.Policy.Limit.Wait(&state, now, b.Cost)
		denied = denied || decision.Denies(b, &statuses[i])
	}
	return denied
}

func (s *servers) state(b *policy.Bound, now limit.Micros) limit.State {
	state := s.states[b.Key]
	state.Log, state.Slots = slices.Clone(state.Log), slices.Clone(state.Slots) // a refund brings the old ones back
	b.Policy.Limit.Advance(&state, now)
	return state
}

func (s *servers) spend(b *policy.Bound, status *decision.Status, denied bool, now limit.Micros) {
	state := s.state(b, now)
	admits := b.Policy.Limit.Wait(&state, now, b.Cost) == 0 && b.Cost > 0
	switch {
	case status.Source == decision.Redis && admits && !denied:
		status.Charged = true
		s.spent[b.Policy.Name] += b.Cost
		s.before[b.Key] = s.states[b.Key]
	case s.is[b.Key.GroupID] == deaf && admits:
		s.unknown[b.Policy.Name] += b.Cost
	default:
		admits = false
	}
	if admits {
		status.Receipt = b.Policy.Limit.Acquire(&state, now, b.Cost, store.NewSlotID())
		s.states[b.Key] = state
	}
	if status.Source == decision.Redis {
		status.Status = b.Policy.Limit.Status(&state, now)
	}
}

// Settle implements Shared.
func (s *servers) Settle(
	_ context.Context, bounds []policy.Bound, statuses []decision.Status, actual []int64,
) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if actual == nil {
		s.refunds++
		for i := range statuses {
			if statuses[i].Charged && statuses[i].Source == decision.Redis {
				statuses[i].Charged = false
				s.spent[bounds[i].Policy.Name] -= bounds[i].Cost
			}
		}
		maps.Copy(s.states, s.before)
		return nil
	}
	s.settlements++
	for i := range bounds {
		b, status := &bounds[i], &statuses[i]
		if !status.Charged || status.Source != decision.Redis {
			continue
		}
		c := s.is[b.Key.GroupID]
		status.Charged, status.Settled, status.Failure = false, 0, failureOf[c]
		if c != up && c != deaf {
			continue
		}
		state, l := s.states[b.Key], &b.Policy.Limit
		state.Log, state.Slots = slices.Clone(state.Log), slices.Clone(state.Slots)
		change := l.Settle(&state, s.clock.Now(), b.Cost, actual[i], status.Receipt)
		if s.states[b.Key] = state; c == up {
			status.Settled = l.WholeTokens(change)
		}
	}
	return nil
}

// used returns what a bucket counts.
func (s *servers) used(b *policy.Bound) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock.Now()
	state := s.state(b, now)
	return b.Policy.Limit.Status(&state, now).Used
}

// Beat implements Shared.
func (s *servers) Beat(_ context.Context, namespace, node string, ttl time.Duration) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.is[""] != up || ttl != lifetime {
		return 0, errUnavailable
	}
	s.beats[namespace] = node
	return s.live, nil
}

// Leave implements Shared.
func (s *servers) Leave(_ context.Context, namespace, node string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.is[""] != up || s.beats[namespace] != node {
		return errUnavailable
	}
	delete(s.beats, namespace)
	return nil
}

// Probe implements Shared.
func (s *servers) Probe(context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.probes++
	if s.gate == nil {
		return
	}
	if _, ok := s.gate.Enter(); ok {
		s.gate.Leave(0, s.is[""] != up)
	}
}

// world is a store over servers, with a fallback and a clock.
type world struct {
	clock    *storetest.ManualClock
	servers  *servers
	fallback *memory.Store
	breakers *Breakers
	store    *Guard
	view     *Store
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func newWorld(o Options, v StoreOptions) *world {
	clock := storetest.NewClock()
	return nodeOf(newServers(clock), o, v)
}

// newWorldAt is newWorld with a clock for heartbeats and breakers.
func newWorldAt(now func() time.Time, o Options, v StoreOptions) *world {
	o.Breakers = NewBreakers(quiet(), now)
	return newWorld(o, v)
}

// nodeOf is one more node of the central store.
func nodeOf(central *servers, o Options, v StoreOptions) *world {
	w := &world{clock: central.clock, servers: central, fallback: memory.New(memory.Options{Now: central.clock.Now})}
	if o.Log == nil {
		o.Log = quiet()
	}
	if w.breakers = o.Breakers; w.breakers == nil {
		w.breakers = NewBreakers(o.Log, time.Now)
	}
	o.Name, o.Now, o.Breakers = "main", central.clock.Now, w.breakers
	if v.Namespace == "" {
		v.Namespace = "default"
	}
	w.store = New(central, w.fallback, o)
	w.view = w.store.Store(v)
	return w
}

// take takes bounds, and reports whether the request was admitted.
func (w *world) take(t testing.TB, bounds ...policy.Bound) ([]decision.Status, bool) {
	t.Helper()
	statuses := make([]decision.Status, len(bounds))
	require.NoError(t, w.view.Take(context.Background(), bounds, statuses), "take %d bounds", len(bounds))
	admitted := true
	for i := range bounds {
		admitted = admitted && !decision.Denies(&bounds[i], &statuses[i])
	}
	return statuses, admitted
}

func compiled(t testing.TB, spec limit.Spec) limit.Limit {
	t.Helper()
	l, err := limit.New(spec)
	require.NoError(t, err, "compile %+v", spec)
	return l
}

// bound is one of cost 1 on a fixed window of a minute. Its policy's name is the fail mode's.
func bound(t testing.TB, mode policy.FailMode, quantity int64, tenant string) policy.Bound {
	p := &policy.Policy{
		Name: mode.String(), FailMode: mode, Cost: -1,
		Limit: compiled(t, limit.Spec{Algorithm: limit.FixedWindow, Quantity: quantity, Window: minute}),
	}
	return policy.Bound{
		Policy: p, Cost: 1, Key: policy.Key{Namespace: "default", Policy: p.Name, Group: policy.ByTenant, GroupID: tenant},
	}
}

// reconcile charges all debts at once, without the delays of Step.
func (s *Guard) reconcile(ctx context.Context) {
	s.chargeWanted.Store(true)
	for next := s.stepCharge(ctx, s.clock()); !next.IsZero(); next = s.stepCharge(ctx, next) {
	}
}
