package reservation

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/memory"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/settle"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

const start = 1_900_000_000 * limit.Second

// namedWorld is a ledger beside buckets of this process.
type namedWorld struct {
	*testing.T
	*Keeper
	buckets *memory.Store
	budget  policy.Bound
	now     limit.Micros
	faults  faultyRecords
}

func newNamedWorld(t *testing.T) *namedWorld {
	t.Helper()
	l, err := limit.New(limit.Spec{Algorithm: limit.FixedWindow, Quantity: 10_000, Window: 86_400 * limit.Second})
	require.NoError(t, err)
	rule, err := settle.New(schema.Settle{Sources: []schema.SettleSource{{From: "shared.tokens"}}, Timeout: 60}, nil)
	require.NoError(t, err)
	w := &namedWorld{T: t, now: start}
	clock := func() limit.Micros { return w.now }
	w.buckets = memory.New(memory.Options{Now: clock})
	w.budget = policy.Bound{
		Policy: &policy.Policy{Name: "budget", Scope: policy.Tenant, Limit: l, Settle: rule, Row: 7},
		Key:    policy.Key{Namespace: "default", Policy: "budget", Group: policy.ByTenant, GroupID: "acme"},
	}
	w.faults.local = newLocal(clock, 3)
	w.Keeper = New(Options{Elapsed: clock, Now: clock}).Keeper(w.buckets, nil, func() {})
	w.records = &w.faults
	return w
}

// beside returns the keeper of another process, on the same buckets and records.
func (w *namedWorld) beside(o Options) *Keeper {
	o.Elapsed, o.Now = w.ledger.options.Elapsed, w.ledger.options.Now
	k := New(o).Keeper(w.buckets, nil, func() {})
	k.records = w.records
	return k
}

// expire reports what has timed out.
func (w *namedWorld) expire() {
	w.now += limit.Second
	w.ledger.Expire()
	_ = w.ledger.background.Wait()
}

// faultyRecords fail in the ways of a store that is not in this process.
type faultyRecords struct {
	*local
	lost        int // the next calls that change something do so, and their answers are lost
	unsent      int // the next calls do nothing
	unavailable bool
	held        []func() // new records that arrive later; nil: they do at once
	holds       bool
}

// arrive lets the calls that were held do their work.
func (f *faultyRecords) arrive() {
	f.holds, f.unavailable = false, false
	for _, call := range f.held {
		call()
	}
	f.held = nil
}

var errLost = errors.New("no answer")

// fault reports whether a call does nothing, and returns its error.
func (f *faultyRecords) fault() (nothing bool, err error) {
	switch {
	case f.unavailable:
		return true, errLost
	case f.unsent > 0:
		f.unsent--
		return true, errLost
	case f.lost > 0:
		f.lost--
		return false, errLost
	}
	return false, nil
}

func (f *faultyRecords) Get(ctx context.Context, key string) ([]byte, error) {
	if f.unavailable {
		return nil, errLost
	}
	return f.local.Get(ctx, key)
}

func (f *faultyRecords) Swap(ctx context.Context, key string, old, next []byte, ttl time.Duration) ([]byte, error) {
	if f.holds && old == nil {
		f.unavailable = true
		f.held = append(f.held, func() { _, _ = f.local.Swap(ctx, key, old, next, ttl) })
		return nil, errLost
	}
	nothing, failed := f.fault()
	if nothing {
		return nil, failed
	}
	present, err := f.local.Swap(ctx, key, old, next, ttl)
	return present, errors.Join(failed, err)
}

func request(id string, tokens int64) *Request {
	return &Request{
		Name: Name{"default", "", id}, Hash: fmt.Append(nil, tokens), Org: "acme", Tokens: tokens, Timeout: time.Minute,
	}
}

// reserve charges a reservation and keeps it.
func (w *namedWorld) reserve(id string, tokens int64) error {
	w.Helper()
	claim, first, err := w.Claim(w.Context(), request(id, tokens))
	if err != nil {
		return err
	}
	if claim == nil {
		w.Fatalf("%s was answered before: %s", id, first)
	}
	d := &decision.Decision{Statuses: make([]decision.Status, 1)}
	d.Resolution.Bounds = []policy.Bound{w.budget}
	d.Resolution.Bounds[0].Cost = tokens
	if err := w.buckets.Take(w.Context(), d.Resolution.Bounds, d.Statuses); err != nil || !d.Statuses[0].Charged {
		w.Fatalf("%v %+v", err, d.Statuses)
	}
	return claim.Keep(w.Context(), NewRecord(d, w.now), json.RawMessage(`"`+id+`"`))
}

func (w *namedWorld) settles(id string, actual int64) (Settled, error) {
	return w.Settle(w.Context(), Name{"default", "", id}, Use{Actual: actual}, func(string, string) error { return nil })
}

func (w *namedWorld) wantUsed(want int64) {
	w.Helper()
	statuses := make([]decision.Status, 1)
	if err := w.buckets.Peek(w.Context(), []policy.Bound{w.budget}, statuses); err != nil || statuses[0].Used != want {
		w.Errorf("%d tokens are used (%v), want %d", statuses[0].Used, err, want)
	}
}

func TestAReservationIsSettledOnceInTheBucketsOfThisProcess(t *testing.T) {
	w := newNamedWorld(t)
	require.NoError(t, w.reserve("chat", 500))
	if claim, first, err := w.Claim(t.Context(), request("chat", 500)); claim != nil || string(first) != `"chat"` {
		t.Errorf("a repetition gets %v, %s, %v, want the first answer", claim, first, err)
	}
	if _, _, err := w.Claim(t.Context(), request("chat", 501)); !errors.Is(err, ErrReused) {
		t.Errorf("another check with the id gets %v", err)
	}
	for repetition := range 3 {
		s, err := w.settles("chat", 120)
		if err != nil || len(s.Changes) != 1 || s.Changes[0].Change != -380 || s.Changes[0].Row != 7 || s.Late ||
			s.Repeated != (repetition > 0) {
			t.Errorf("settlement %d: %+v, %v", repetition, s, err)
		}
		w.wantUsed(120)
	}
	first := &UseError{}
	if _, err := w.settles("chat", 121); !errors.As(err, &first) || first.First != (Use{Actual: 120}) {
		t.Errorf("another settlement gets %v", err)
	}
	if _, err := w.settles("other", 1); !errors.Is(err, ErrUnknown) {
		t.Errorf("an unknown id gets %v", err)
	}
}

func TestACallWhoseAnswerIsLostIsLookedAtAndCountsOnce(t *testing.T) {
	w := newNamedWorld(t)
	w.faults.lost = 2 // of the claim, and of the record
	require.NoError(t, w.reserve("chat", 500))
	w.faults.lost = 2 // of the start of the settlement, and of its end
	for range 2 {
		s, err := w.settles("chat", 120)
		assert.True(t, err == nil && !s.Unknown && s.Changes[0].Change == -380, "%+v, %v", s, err)
		w.wantUsed(120)
	}
}

func TestACallThatDidNotArriveChangesNothingAndCanBeRepeated(t *testing.T) {
	w := newNamedWorld(t)
	for range 2 {
		w.faults.unsent = 1
		if err := w.reserve("chat", 500); err == nil {
			t.Error("a claim that did not arrive is none")
		}
	}
	require.NoError(t, w.reserve("chat", 500))
	w.faults.unsent = 1
	if s, err := w.settles("chat", 120); err == nil {
		t.Errorf("%+v, want an error", s)
	}
	w.wantUsed(500)
	if s, err := w.settles("chat", 120); err != nil || s.Repeated {
		t.Errorf("%+v, %v, want it settled now", s, err)
	}
	w.wantUsed(120)
}

func TestAClaimThatArrivesTooLateLeavesItsIdFree(t *testing.T) {
	w := newNamedWorld(t)
	other := w.beside(Options{Patience: time.Nanosecond})
	for _, id := range []string{"same process", "other process"} {
		w.faults.holds = true
		if err := w.reserve(id, 500); err == nil {
			t.Fatal("a claim without an answer is none")
		}
		w.faults.arrive()
	}
	claim, _, err := other.Claim(t.Context(), request("other process", 500))
	require.True(t, errors.Is(err, ErrUnderway), "%v, %v", claim, err)
	w.ledger.releaseDoubts(t.Context())
	assert.NoError(t, w.reserve("same process", 500), "the request sent again")
	if claim, _, err = other.Claim(t.Context(), request("other process", 500)); claim == nil || err != nil {
		t.Errorf("the request sent to another process: %v", err)
	}
	w.wantUsed(500)
	assert.Empty(t, w.ledger.doubts, "claims are remembered")
}

func TestAClaimWithoutAnAnswerIsForgottenAfterAWhile(t *testing.T) {
	w := newNamedWorld(t)
	w.faults.holds = true
	err := w.reserve("chat", 500)
	require.True(t, err != nil, "a claim without an answer is none")
	w.now += limit.Micros(maxAttempt.Microseconds())
	w.ledger.releaseDoubts(t.Context())
	assert.Empty(t, w.ledger.doubts, "claims are remembered")
}

func TestAnEntryThatCannotBeReadIsNeitherReservedNorSettledNorChanged(t *testing.T) {
	w := newNamedWorld(t)
	key := Name{"default", "", "chat"}.key()
	for _, value := range []string{
		" ", "null", "[]", `{"state":"ended"}`, `{"state":"settled","actual":1}`, `{"state":"reserved","record":{"v":9}}`,
	} {
		if _, err := w.faults.Swap(t.Context(), key, nil, []byte(value), time.Hour); err != nil {
			t.Fatal(err)
		}
		if s, err := w.settles("chat", 1); err == nil {
			t.Errorf("%q is settled: %+v", value, s)
		}
		if claim, _, err := w.Claim(t.Context(), request("chat", 1)); err == nil {
			t.Errorf("%q is claimed: %v", value, claim)
		}
		kept, err := w.faults.Swap(t.Context(), key, []byte(value), nil, 0)
		if err != nil || !bytes.Equal(kept, []byte(value)) {
			t.Errorf("%q has become %q (%v)", value, kept, err)
		}
	}
	w.wantUsed(0)
}

func TestAReleasedIdIsFreeAndAFullStoreClaimsNothing(t *testing.T) {
	w := newNamedWorld(t)
	for range 5 { // more than there is room for
		claim, _, err := w.Claim(t.Context(), request("chat", 1))
		require.NoError(t, err)
		claim.Release(t.Context())
	}
	for i := range 3 {
		require.NoError(t, w.reserve(fmt.Sprint("chat", i), 10))
	}
	if _, _, err := w.Claim(t.Context(), request("chat", 1)); !errors.Is(err, ErrFull) {
		t.Errorf("without room: %v", err)
	}
	if _, err := w.settles("chat0", 4); err != nil {
		t.Error(err)
	}
	w.now += 121 * limit.Second // twice the timeout
	if _, err := w.settles("chat1", 4); !errors.Is(err, ErrUnknown) {
		t.Errorf("an id that has ended: %v", err)
	}
	assert.NoError(t, w.reserve("chat1", 10), "an id that has ended is not free")
	w.wantUsed(34)
}

func TestNoTwoNamesHaveOneKey(t *testing.T) {
	seen := map[string]Name{}
	for _, n := range []Name{
		{"a", "", "b"},
		{"", "a", "b"},
		{"a", "b", ""},
		{"", "", "ab"},
		{"ab", "", ""},
		{"a", "1:b", ""},
		{"a", "", "1:b"},
		{"a1:b", "", ""},
		{"a", "b", "c"},
		{"a", "c", "b"},
	} {
		other, ok := seen[n.key()]
		assert.True(t, !ok, "%+v and %+v have one key", n, other)
		seen[n.key()] = n
	}
}

// outcomes counts what becomes of reservations.
type outcomes map[Outcome]int

var counting sync.Mutex // of all outcomes: several reservations time out at a time

func (o outcomes) Reserved(*policy.Bound) {}

func (o outcomes) Settled(_ *policy.Bound, s Settlement) {
	counting.Lock()
	defer counting.Unlock()
	o[s.Outcome]++
}

func TestAReservationThatIsNotSettledIsReportedOnce(t *testing.T) {
	w, seen := newNamedWorld(t), outcomes{}
	w.ledger.options.Observer = seen
	for _, id := range []string{"settled", "late", "never"} {
		require.NoError(t, w.reserve(id, 100))
	}
	if _, err := w.settles("settled", 10); err != nil {
		t.Fatal(err)
	}
	w.expire()
	w.now += 61 * limit.Second
	w.faults.unavailable = true
	w.expire()
	assert.Zero(t, seen[TimedOut], "%v before the records can be read", seen)
	w.faults.unavailable = false
	for range 2 {
		w.expire()
	}
	if s, err := w.settles("late", 150); err != nil || !s.Late || s.Changes[0].Change != 50 {
		t.Errorf("%+v, %v", s, err)
	}
	want := outcomes{Measured: 1, TimedOut: 2, Late: 1}
	assert.Equal(t, want, seen, "reported")
	w.wantUsed(260)
}

// Another process settles late what the one that made it did not live to report.
func TestALateSettlementReportsTheTimeoutIfNoProcessHas(t *testing.T) {
	w, seen := newNamedWorld(t), outcomes{}
	require.NoError(t, w.reserve("chat", 100))
	other := w.beside(Options{Observer: seen})
	w.now += 61 * limit.Second
	for range 2 {
		s, err := other.Settle(t.Context(), Name{"default", "", "chat"}, Use{Actual: 30},
			func(string, string) error { return nil })
		assert.True(t, err == nil && s.Late && s.Changes[0].Change == 0, "%+v, %v", s, err)
	}
	assert.True(t, seen[TimedOut] == 1 && seen[Late] == 1, "reported %v", seen)
	w.wantUsed(100)
}

// delays collects how long reservations were kept.
type delays []limit.Micros

func (d *delays) Reserved(*policy.Bound) {}

func (d *delays) Settled(_ *policy.Bound, s Settlement) { *d = append(*d, s.Delay) }

func TestASettlementByAClockThatIsBehindIsReportedWithoutADelay(t *testing.T) {
	w, seen := newNamedWorld(t), delays{}
	w.ledger.options.Observer = &seen
	require.NoError(t, w.reserve("chat", 100))
	w.now -= limit.Second
	_, err := w.settles("chat", 30)
	require.True(t, err == nil, "%v", err)
	assert.True(t, len(seen) == 1 && seen[0] == 0, "reported the delays %v, want 0", seen)
}

func TestATimeoutWhoseEntryCannotBeDecodedIsLoggedOnceAndNotCounted(t *testing.T) {
	w, seen, logged := newNamedWorld(t), outcomes{}, new(bytes.Buffer)
	w.ledger.options.Observer, w.ledger.options.Log = seen, slog.New(slog.NewTextHandler(logged, nil))
	for _, id := range []string{"garbled", "whole"} {
		require.NoError(t, w.reserve(id, 100))
	}
	w.faults.records[Name{"default", "", "garbled"}.key()] = localRecord{[]byte(`{"state":"later"}`), 1 << 62}
	w.now += 61 * limit.Second
	for range 2 {
		w.expire()
	}
	if n := bytes.Count(logged.Bytes(), []byte("timed out failed")); n != 1 || w.ledger.Stats().Kept != 0 {
		t.Errorf("logged %d times, %d are awaited: %s", n, w.ledger.Stats().Kept, logged)
	}
	assert.Equal(t, 1, seen[TimedOut], "reported %v, want the whole one", seen)
}

// slowRecords answers a Get when it may, with an error of the test.
type slowRecords struct {
	*local
	read, answer chan struct{}
	err          error
}

func (s slowRecords) Get(ctx context.Context, key string) ([]byte, error) {
	value, err := s.local.Get(ctx, key)
	s.read <- struct{}{}
	<-s.answer
	return value, errors.Join(err, s.err)
}

func TestATimeoutIsReportedByOneCallWhichForgetsNoReservationThatHasTheNameAnew(t *testing.T) {
	for _, failure := range []error{nil, errors.New("out of reach")} {
		var now limit.Micros
		l := New(Options{Elapsed: func() limit.Micros { return now }, Now: func() limit.Micros { return now }})
		k := l.Keeper(nil, nil, func() {})
		slow := slowRecords{k.records.(*local), make(chan struct{}, 9), make(chan struct{}), failure}
		k.records = slow
		add := func() {
			k.use()
			l.add(&reservation{Record: &Record{Timeout: limit.Second}, key: "x", keeper: k, named: true})
		}
		add()
		now = limit.Second
		l.Expire()
		<-slow.read
		add()
		now += limit.Second / 2
		l.Expire()
		close(slow.answer)
		require.NoError(t, l.background.Wait())
		assert.Empty(t, slow.read, "another call for the same reservation")
		assert.Equal(t, 1, l.Stats().Kept, "the reservation that has the name now")
		assert.Len(t, l.ends, 1, "those that time out")
		assert.EqualValues(t, 2, k.uses.Load(), "the keeper and what it keeps")
	}
}
