package reservation

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/settle"
)

// outcome is an error of a call to records.
type outcome struct{ mayHaveRun bool }

func (o outcome) Error() string    { return "the store is away" }
func (o outcome) MayHaveRun() bool { return o.mayHaveRun }

// memoryRecords keeps records in this process. Its calls can fail, and wait.
type memoryRecords struct {
	mu       sync.Mutex
	records  map[string][]byte
	ttl      time.Duration // of the last record
	addErr   error         // of each new record, which is then kept if it may have run
	claimErr error         // of each other call, which then claims the record if it may have run
	adds     int
	lost     bool          // a claim that fails does not run
	calls    int           // to read or claim a record
	holdAdds chan struct{} // a new record waits for it; nil: it does not
}

func (m *memoryRecords) Get(_ context.Context, key string) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.calls++
	if m.claimErr != nil {
		return nil, m.claimErr
	}
	return m.records[key], nil
}

func (m *memoryRecords) Swap(_ context.Context, key string, old, next []byte, ttl time.Duration) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	failed, lost := m.claimErr, m.lost
	if old == nil {
		m.adds++
		if hold := m.holdAdds; hold != nil {
			m.mu.Unlock()
			<-hold
			m.mu.Lock()
		}
		failed, lost, m.ttl = m.addErr, false, ttl
	} else {
		m.calls++
	}
	if failed != nil && (lost || !MayHaveRun(failed)) {
		return nil, failed
	}
	present := m.records[key]
	switch {
	case !bytes.Equal(present, old):
	case next == nil:
		delete(m.records, key)
	default:
		m.records[key] = bytes.Clone(next)
	}
	return present, failed
}

// left returns the number of records that are not claimed.
func (m *memoryRecords) left() (n int) {
	for _, record := range m.records {
		if isRecord(record) {
			n++
		}
	}
	return n
}

// expire ends the time for which claims are kept.
func (m *memoryRecords) expire() {
	maps.DeleteFunc(m.records, func(_ string, record []byte) bool { return !isRecord(record) })
}

func (m *memoryRecords) set(change func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change()
}

// inRedis makes the buckets of a test those of a central store, whose receipts are of use in every process.
type inRedis struct{ Buckets }

func (s inRedis) Settle(
	ctx context.Context, bounds []policy.Bound, statuses []decision.Status, actual []int64,
) error {
	for i := range statuses {
		if statuses[i].Source == decision.Redis {
			statuses[i].Source = decision.Memory
		}
	}
	return s.Buckets.Settle(ctx, bounds, statuses, actual)
}

// shares makes the reservations of a world recorded, in records that another world may share.
func (w *world) shares(records *memoryRecords) {
	w.records = records
	w.keeper = w.table.Keeper(inRedis{w.store}, central{records, testStore}, func() { w.closed++ })
}

// central is a store at which the records of a test are.
type central struct {
	*memoryRecords
	fingerprint string
}

func (c central) Fingerprint() string { return c.fingerprint }

const testStore = "0123456789abcdef"

// newRecords returns records that work.
func newRecords() *memoryRecords {
	return &memoryRecords{records: map[string][]byte{}}
}

// beside returns the world of another process, on the same buckets and records.
func (w *world) beside() *world {
	other := newWorld(w.t, 0)
	other.store = w.store
	other.shares(w.records)
	return other
}

// recorded waits until all calls in the background have ended.
func (w *world) recorded() { _ = w.table.background.Wait() }

func TestAReservationIsRecordedBesideTheRequest(t *testing.T) {
	w, records := newWorld(t, 0), newRecords()
	records.holdAdds = make(chan struct{})
	w.shares(records)
	b := boundOf(budget(t, 100), 100)
	text := w.reserve(b) // it returns while the record is held up
	close(records.holdAdds)
	w.recorded()
	parsed, ok := parseToken(text)
	_, err := decodeRecord(records.records[parsed.key], false)
	require.True(t, ok && err == nil, "the token %s, %v", text, err)
	if parsed.store != testStore || len(parsed.needs.Shared) != 1 || records.ttl != 120*time.Second || records.adds != 1 {
		t.Errorf("the token is %+v, the TTL %v after %d calls", parsed, records.ttl, records.adds)
	}
	w.settle(text, usedTokens(30))
	w.expect(b, 30, Measured)
	assert.Zero(t, records.left(), "records are left")
}

// race is what happens around the claim of a reservation.
type race struct {
	name    string
	before  func(r *memoryRecords) // before the reservation
	between func(r *memoryRecords) // before its log phase
	used    float64
	want    int64
	outcome []Outcome
	stats   Stats
}

func TestWhateverBecomesOfTheRecordAReservationIsSettledOnceAndNeverReturnedInDoubt(t *testing.T) {
	fails := func(mayHaveRun bool) func(*memoryRecords) {
		return func(r *memoryRecords) { r.addErr = outcome{mayHaveRun} }
	}
	claimFails := func(mayHaveRun bool) func(*memoryRecords) {
		return func(r *memoryRecords) { r.claimErr = outcome{mayHaveRun} }
	}
	gone := func(r *memoryRecords) { clear(r.records) }
	taken := func(r *memoryRecords) {
		for key := range r.records {
			r.records[key] = []byte(claimMark + "another")
		}
	}
	none := func(*memoryRecords) {}
	for _, test := range []race{
		{"recorded", none, none, 30, 30, []Outcome{Measured}, Stats{}},
		{"not recorded", fails(false), none, 30, 30, []Outcome{Measured}, Stats{Unrecorded: 1}},
		{
			"not recorded, the store is away", fails(false), claimFails(false), 30, 30,
			[]Outcome{Measured},
			Stats{Unrecorded: 1},
		},
		{"perhaps recorded, and it is", fails(true), none, 30, 30, []Outcome{Measured}, Stats{Unrecorded: 1}},
		{"perhaps recorded, and it is not there", fails(true), gone, 30, 100, []Outcome{Lost}, Stats{Unrecorded: 1}},
		{"perhaps recorded, and more was used", fails(true), gone, 130, 130, []Outcome{Measured}, Stats{Unrecorded: 1}},
		{"perhaps recorded, and claimed", fails(true), taken, 130, 100, nil, Stats{Unrecorded: 1, Elsewhere: 1}},
		{"claimed by another process", none, taken, 130, 100, nil, Stats{Elsewhere: 1}},
		{"settled by another process", none, gone, 30, 100, nil, Stats{Elsewhere: 1}},
		{"perhaps claimed", none, claimFails(true), 30, 100, nil, Stats{Parked: 1}},
		{"the store is away", none, claimFails(false), 30, 100, nil, Stats{Parked: 1}},
	} {
		t.Run(test.name, func(t *testing.T) {
			w, records := newWorld(t, 0), newRecords()
			test.before(records)
			w.shares(records)
			b := boundOf(budget(t, 100), 100)
			text := w.reserve(b)
			w.recorded()
			test.between(records)
			w.settle(text, usedTokens(test.used))
			w.expect(b, test.want, test.outcome...)
			assert.Equal(t, test.stats, w.table.Stats(), "the numbers")
			w.settle(text, usedTokens(test.used)) // Kong sends the event again
			w.table.retry(t.Context())
			w.expect(b, test.want, test.outcome...)
		})
	}
}

func TestALostClaimIsMadeAgainAndReturnsNothingOnceItsTimeIsUp(t *testing.T) {
	for _, test := range []struct {
		ran     bool // the claim was made
		expired bool // and its time is up
		used    float64
		want    int64
		outcome Outcome
	}{
		{false, false, 30, 30, Measured},
		{false, false, 130, 130, Measured},
		{true, false, 30, 30, Measured},
		{true, false, 130, 130, Measured},
		{true, true, 30, 100, Lost},
		{true, true, 130, 130, Measured},
		{true, true, 100, 100, Measured},
	} {
		w, records := newWorld(t, 0), newRecords()
		w.shares(records)
		b := boundOf(budget(t, 100), 100)
		text := w.reserve(b)
		w.recorded()
		before := maps.Clone(records.records)
		records.claimErr = outcome{true}
		w.settle(text, usedTokens(test.used))
		w.expect(b, 100)
		records.claimErr = nil
		if !test.ran {
			records.records = before
		}
		if !test.ran || test.expired {
			records.expire()
		}
		w.table.retry(t.Context())
		w.expect(b, test.want, test.outcome)
		if s := w.table.Stats(); s != (Stats{}) || records.left() != 0 {
			t.Errorf("%+v: the numbers are %+v, %d records are left", test, s, records.left())
		}
	}
}

// A log event reaches two processes, and the first claim of each is lost before or after it was made. Each event is
// settled once, in full.
func TestALogEventThatReachesTwoProcessesIsSettledOnceInFullWhateverClaimsAreLost(t *testing.T) {
	const delivered, before = 0, 1 // 2: after it was made
	for first := range 3 {
		for second := range 3 {
			for _, makerLast := range []bool{false, true} {
				for _, used := range []int64{30, 130} {
					maker, records := newWorld(t, 0), newRecords()
					maker.shares(records)
					other := maker.beside()
					b := boundOf(budget(t, 100), 100)
					text := maker.reserve(b)
					maker.recorded()
					order := []*world{maker, other}
					if makerLast {
						slices.Reverse(order)
					}
					for i, lost := range []int{first, second} {
						records.claimErr, records.lost = nil, lost == before
						if lost != delivered {
							records.claimErr = outcome{true}
						}
						order[i].settle(text, usedTokens(float64(used)))
					}
					records.claimErr = nil
					for range 2 {
						order[1].table.retry(t.Context())
						order[0].table.retry(t.Context())
					}
					settled := len(maker.settled) + len(other.settled)
					parked := maker.table.Stats().Parked + other.table.Stats().Parked
					if got := maker.used(b); got != used || settled != 1 || parked != 0 {
						t.Errorf("lost %d and %d, the maker last: %t: used %d, charged %d, settled %d times, %d parked",
							first, second, makerLast, used, got, settled, parked)
					}
				}
			}
		}
	}
}

func TestALogPhaseWaitsForTheRecordOnItsWay(t *testing.T) {
	w, records := newWorld(t, 0), newRecords()
	records.holdAdds = make(chan struct{})
	w.shares(records)
	b := boundOf(budget(t, 100), 100)
	text := w.reserve(b)
	settled := make(chan struct{})
	go func() {
		defer close(settled)
		w.settle(text, usedTokens(30))
	}()
	records.set(func() {
		assert.Zero(t, records.calls, "the record was claimed before it was there")
	})
	close(records.holdAdds)
	<-settled
	w.expect(b, 30, Measured)

	records.holdAdds = make(chan struct{})
	text = w.reserve(b)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	assert.NoError(t, w.table.Settle(ended, text, usedTokens(30)))
	w.expect(b, 130, Measured, Lost)
	close(records.holdAdds)
	w.recorded()
}

func TestARequestIsSettledOnceItsStoreIsBack(t *testing.T) {
	w, records := newWorld(t, 0), newRecords()
	w.shares(records)
	b := boundOf(budget(t, 100), 100)
	var texts []string
	for range 3 {
		texts = append(texts, w.reserve(b))
	}
	w.recorded()
	records.claimErr = outcome{false}
	for _, text := range texts {
		w.settle(text, usedTokens(30))
	}
	records.calls = 0
	w.table.retry(t.Context())
	w.expect(b, 300)
	assert.Equal(t, 1, records.calls, "a store that is away is called %d times", records.calls)
	w.keeper.Close()
	require.Zero(t, w.closed, "the store was closed before its reservations were settled")
	w.now += 30 * limit.Second
	records.claimErr = nil
	w.table.retry(t.Context())
	w.expect(b, 90, Measured, Measured, Measured)
	if w.closed != 1 || w.table.Stats() != (Stats{}) {
		t.Errorf("the store was closed %d times, the numbers are %+v", w.closed, w.table.Stats())
	}
}

func TestARequestWhoseStoreStaysAwayKeepsItsReservation(t *testing.T) {
	w, records := newWorld(t, 0), newRecords()
	w.shares(records)
	b := boundOf(budget(t, 100), 100)
	text := w.reserve(b)
	w.recorded()
	records.claimErr = outcome{false}
	w.settle(text, usedTokens(30))
	foreign := w.beside().reserve(b)
	w.recorded()
	w.settle(foreign, usedTokens(30))
	w.now += maxParkedTime - 1
	w.table.retry(t.Context())
	w.expect(b, 200)
	w.now++
	w.table.retry(t.Context())
	w.expect(b, 200, Lost)
	w.keeper.Close()
	if s := w.table.Stats(); s != (Stats{Abandoned: 2}) || w.closed != 1 {
		t.Errorf("the store was closed %d times, the numbers are %+v", w.closed, s)
	}
}

func TestARecordThatEndedWhileItsStoreWasAwayIsNoProofThatAnotherSettled(t *testing.T) {
	for used, want := range map[float64]int64{30: 100, 130: 130} {
		w, records := newWorld(t, 0), newRecords()
		w.shares(records)
		b := boundOf(budget(t, 100), 100)
		text := w.reserve(b)
		w.recorded()
		records.claimErr = outcome{false}
		w.settle(text, usedTokens(used))
		w.now += 2 * b.Policy.Settle.Timeout()
		records.claimErr = nil
		clear(records.records)
		w.table.retry(t.Context())
		w.expect(b, want, map[float64]Outcome{30: Lost, 130: Measured}[used])
		assert.Zero(t, w.table.Stats(), "the numbers")
	}
}

func TestAnotherProcessSettlesByTheRecord(t *testing.T) {
	w := newWorld(t, 0)
	w.shares(newRecords())
	other := w.beside()
	b := boundOf(budget(t, 100), 100)
	text := w.reserve(b)
	w.recorded()
	other.now += 2 * limit.Second
	other.settle(text, usedTokens(30))
	other.expect(b, 30, Measured)
	delay := other.settled[0].Delay
	assert.True(t, delay == 2*limit.Second, "the delay is %d µs", delay)
	other.settle(text, usedTokens(0))
	other.table.retry(t.Context())
	w.settle(text, usedTokens(0))
	w.expect(b, 30)
	assert.Equal(t, Stats{Elsewhere: 1}, w.table.Stats(), "the numbers of the first process")
	assert.Equal(t, Stats{Unknown: 1}, other.table.Stats(), "the numbers of the second process")
}

func TestARecordThatComesAfterItsLogPhaseIsStillSettled(t *testing.T) {
	w, records := newWorld(t, 0), newRecords()
	records.holdAdds = make(chan struct{})
	w.shares(records)
	other := w.beside()
	b := boundOf(budget(t, 100), 100)
	text := w.reserve(b)
	other.settle(text, usedTokens(30))
	other.expect(b, 100)
	close(records.holdAdds)
	w.recorded()
	other.table.retry(t.Context())
	other.expect(b, 30, Measured)
}

func TestALogPhaseBeforeItsStoreIsOpenIsSettledThen(t *testing.T) {
	w := newWorld(t, 0)
	w.shares(newRecords())
	b := boundOf(budget(t, 100), 100)
	text := w.reserve(b)
	w.recorded()
	respawned := newWorld(t, 0)
	respawned.store = w.store
	respawned.settle(text, usedTokens(30))
	respawned.table.retry(t.Context())
	respawned.expect(b, 100)
	assert.Equal(t, Stats{Parked: 1}, respawned.table.Stats(), "the numbers")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- respawned.table.Run(ctx) }()
	respawned.shares(w.records)
	await.That(t, "all is settled", func() bool { return respawned.table.Stats().Parked == 0 })
	cancel()
	assert.NoError(t, <-ended)
	respawned.expect(b, 30, Measured)
}

func TestProcessesAgreeWhetherASettlementIsLate(t *testing.T) {
	w := newWorld(t, 0)
	w.shares(newRecords())
	other := w.beside()
	b := boundOf(budget(t, 100), 100)
	less, more, own := w.reserve(b), w.reserve(b), w.reserve(b)
	w.recorded()
	other.now += 60 * limit.Second
	other.settle(less, usedTokens(30))
	other.settle(more, usedTokens(150))
	other.expect(b, 350, Late, Late)
	w.wall = w.now + 60*limit.Second // the clock of all processes, whatever time this one has counted
	w.settle(own, usedTokens(30))
	w.expect(b, 350, Late)
}

func TestWhatAnotherProcessHasSettledDoesNotTimeOut(t *testing.T) {
	w := newWorld(t, 0)
	w.shares(newRecords())
	other := w.beside()
	b := boundOf(budget(t, 100), 100)
	settled := w.reserve(b)
	w.reserve(b)
	w.recorded()
	other.settle(settled, usedTokens(30))
	w.now += 60 * limit.Second
	w.table.Expire()
	w.recorded()
	w.expect(b, 130, TimedOut)
	assert.Equal(t, Stats{Kept: 1, Elsewhere: 1}, w.table.Stats(), "the numbers")
}

func TestAReservationForWhichThereIsNoRoomLeavesNoRecord(t *testing.T) {
	w, records := newWorld(t, 1), newRecords()
	w.shares(records)
	b := boundOf(budget(t, 100), 100)
	w.reserve(b)
	w.reserve(b)
	w.recorded()
	w.expect(b, 200, Dropped)
	assert.Len(t, records.records, 1, "records are left")
}

func TestASlowStoreHoldsUpABoundedNumberOfRecords(t *testing.T) {
	w, records := newWorld(t, 0), newRecords()
	records.holdAdds = make(chan struct{})
	w.shares(records)
	b := boundOf(budget(t, 0), 0)
	var last string
	for range maxWriting + 1 {
		last = w.reserve(b)
	}
	s := w.table.Stats()
	assert.True(t, s.Unrecorded == 1, "the numbers are %+v", s)
	w.settle(last, usedTokens(30)) // without a record it waits for nothing
	w.expect(b, 30, Measured)
	close(records.holdAdds)
	w.recorded()
}

func TestOnlyABoundedPartOfWhatWaitsIsKept(t *testing.T) {
	w := newWorld(t, 0)
	w.shares(newRecords())
	w.records.claimErr = outcome{false}
	huge := usedTokens(1)
	huge.answer.Log = settle.Log{"": make([]byte, maxParkedBytes/4)}
	for i := range 8 {
		w.settle(strings.Repeat("0", 31)+string(rune('0'+i))+"."+testStore+".l", huge)
	}
	assert.Equal(t, Stats{Parked: 3, Abandoned: 5}, w.table.Stats(), "the numbers")
}

func TestAnUnreadableRecordSettlesNothing(t *testing.T) {
	w, records := newWorld(t, 0), newRecords()
	w.shares(records)
	records.records[strings.Repeat("0", 32)] = []byte(`{"v":9}`)
	err := w.table.Settle(t.Context(), strings.Repeat("0", 32)+"."+testStore+".l", usedTokens(1))
	assert.True(t, err != nil && w.table.Stats() == (Stats{Abandoned: 1}), "%v, %+v", err, w.table.Stats())
}

func TestATokenIsReadAsItWasWritten(t *testing.T) {
	key := strings.Repeat("0a", 16)
	for _, needs := range []settle.Needs{
		{Log: true},
		{Log: true, Headers: []string{"x-a", "x-b"}, Shared: []string{"a.b_c", "n"}},
		{Headers: []string{"x-a"}},
		{Shared: []string{"n"}},
		{}, // of slots alone
	} {
		parsed, ok := parseToken(token{key: key, store: testStore, needs: needs}.String())
		if !ok || parsed.store != testStore || parsed.needs.Log != needs.Log ||
			strings.Join(parsed.needs.Headers, " ") != strings.Join(needs.Headers, " ") ||
			strings.Join(parsed.needs.Shared, " ") != strings.Join(needs.Shared, " ") {
			t.Errorf("%+v is read as %+v, %t", needs, parsed, ok)
		}
	}
	needs := settle.Needs{Shared: []string{strings.Repeat("n", maxToken)}}
	long := token{key: key, store: testStore, needs: needs}.String()
	if parsed, ok := parseToken(long); !ok || parsed.store != "" || len(long) != 32 {
		t.Errorf("a long token is %d bytes long, for the store %q", len(long), parsed.store)
	}
	for _, text := range []string{
		"", "x", key + "0", key[1:], strings.Repeat("g", 32), key + ".", key + "." + testStore,
		key + "." + testStore + ".x", key + "." + testStore + ".l,", key + "." + testStore + ".,", "NULL_VALUE",
		key + "." + testStore + ".l,q", key + "." + testStore + ".l,h", key + "." + testStore + ".l,ha b",
		key + "." + testStore + ".l,sé", key + ".0123456789ABCDEF.l", key + ".{t=acme}.l",
		key + "." + testStore + ".l" + strings.Repeat(",sn", maxNames+1),
		key + "." + testStore + ".l,s" + strings.Repeat("n", 256),
		key + "." + testStore + ".l,s" + strings.Repeat("n", maxToken),
	} {
		if parsed, ok := parseToken(text); ok {
			t.Errorf("%q is the token %+v", text, parsed)
		}
	}
}

func FuzzATokenIsRejectedOrNamesBoundedNeeds(f *testing.F) {
	f.Add(token{key: strings.Repeat("0", 32), store: testStore, needs: settle.Needs{Log: true, Headers: []string{"x"}}}.String())
	f.Add(strings.Repeat("0", 32))
	f.Fuzz(func(t *testing.T, text string) {
		parsed, ok := parseToken(text)
		if !ok {
			return
		}
		n := len(parsed.needs.Headers) + len(parsed.needs.Shared)
		assert.True(t, n <= maxNames && len(text) <= maxToken, "%q has %d names", text, n)
		if again, ok := parseToken(parsed.String()); !ok || again.String() != parsed.String() {
			t.Errorf("%q is read as %+v", parsed.String(), again)
		}
	})
}
