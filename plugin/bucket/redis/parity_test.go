package redis

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/storetest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

const (
	// paritySteps is how many requests the ordinary test plays; the environment's PARITY_STEPS says otherwise.
	paritySteps = 20_000
	// stepsPerTimeline are sent to Redis in one go.
	stepsPerTimeline = 500
)

// The script and package limit answer every request of any timeline alike, and leave the same states behind.
func TestLuaDecidesAndRemembersAsGoDoes(t *testing.T) {
	steps := paritySteps
	if text, ok := os.LookupEnv("PARITY_STEPS"); ok {
		var err error
		if steps, err = strconv.Atoi(text); err != nil {
			t.Fatalf("PARITY_STEPS is no number of steps: %v", err)
		}
	}
	client := redistest.Single(t).Client(t)
	playTimelines(t, (steps+stepsPerTimeline-1)/stepsPerTimeline, func(rt *rapid.T) {
		flush(t, client)
		playTimeline(rt, client)
	})
}

// playTimelines draws so many timelines. One that fails is drawn again and again, ever shorter, and does not count.
func playTimelines(t *testing.T, count int, play func(*rapid.T)) {
	t.Helper()
	played, failed := 0, false
	for played < count && !t.Failed() {
		rapid.Check(t, func(rt *rapid.T) {
			if played >= count && !failed {
				return
			}
			done := false
			defer func() { failed = failed || !done }()
			play(rt)
			done = true
			played++
		})
	}
}

// step is one request of a timeline, and what the model answers to it.
type step struct {
	now    limit.Micros
	plan   scriptCall
	bounds []policy.Bound
	want   []decision.Status
	change []int64 // of a settlement: the units by which each bucket changed
}

// batch sends steps. Those of one instant that follow each other are one command.
type batch struct {
	pipeline redis.Pipeliner
	waiting  []*call
	sent     [][]*call // by command
	replies  []*redis.RawCmd
}

// add sends a step by the next command, alone or not.
func (b *batch) add(s *step, alone bool) {
	if alone || len(b.waiting) == maxMerged {
		b.flush()
	}
	b.waiting = append(b.waiting, &s.plan.call)
	if alone {
		b.flush()
	}
}

// flush sends the steps that wait.
func (b *batch) flush() {
	if len(b.waiting) == 0 {
		return
	}
	keys, args := 0, []any{"evalsha", turnedClock.sha, 0}
	for _, c := range b.waiting {
		for _, key := range c.keys {
			keys, args = keys+1, append(args, key)
		}
	}
	for _, c := range b.waiting {
		args = append(args, slices.Clone(c.args[0]))
	}
	args[2] = keys
	reply := redis.NewRawCmd(context.Background(), args...)
	_ = b.pipeline.Process(context.Background(), reply)
	b.sent, b.replies, b.waiting = append(b.sent, b.waiting), append(b.replies, reply), nil
}

// read hands the replies to the steps, and returns the most of them that one command had.
func (b *batch) read(t *rapid.T) (most int) {
	for i, calls := range b.sent {
		reply, err := b.replies[i].Bytes()
		if err == nil {
			err = setReplies(calls, reply)
		}
		require.NoError(t, err, "%d requests by one command", len(calls))
		most = max(most, len(calls))
	}
	return most
}

func playTimeline(t *rapid.T, client *redis.Client) {
	w := drawBuckets(t)
	w.play(t, client, stepsPerTimeline, func() []policy.Bound {
		if rapid.IntRange(0, 2).Draw(t, "turns") > 0 { // else it comes at the same instant
			w.turn(t)
		}
		return w.request(t)
	})
}

// play sends so many requests, and demands that Redis answers each as the model does and holds the same in the end.
func (w *world) play(t *rapid.T, client *redis.Client, requests int, next func() []policy.Bound) {
	ctx, pipeline := context.Background(), client.Pipeline()
	pipeline.ScriptLoad(ctx, turnedClock.source)
	steps, sent := make([]step, requests), batch{pipeline: pipeline}
	var clock limit.Micros
	for i := range steps {
		if rapid.IntRange(0, 99).Draw(t, "lost") == 77 {
			sent.flush()
			pipeline.Del(ctx, w.lose(t))
		}
		s := &steps[i]
		s.bounds = next()
		s.now = w.now
		s.plan.clock = w.nodeClock(t)
		var err error
		if len(w.charged) > 0 && rapid.IntRange(0, 4).Draw(t, "settles") == 3 {
			err = s.plan.settle(w.settle(t, s))
		} else {
			err = s.plan.compile(s.bounds)
			s.want = w.take(s.bounds, s.plan.slotIDs())
		}
		require.NoError(t, err, "compile %d bounds", len(s.bounds))
		if s.now != clock {
			sent.flush()
			clock = s.now
			pipeline.Set(ctx, "clock", int64(clock), 0)
		}
		sent.add(s, rapid.IntRange(0, 9).Draw(t, "alone") == 7)
	}
	sent.flush()
	if _, err := pipeline.Exec(ctx); err != nil {
		t.Fatalf("play %d requests: %v", len(steps), err)
	}
	if most := sent.read(t); most < 2 && requests == stepsPerTimeline {
		t.Fatal("each request had a command of its own")
	}
	for i := range steps {
		steps[i].check(t, steps[:i])
	}
	w.compareStates(t, client)
}

func (s *step) check(t *rapid.T, before []step) {
	number := len(before)
	reply := s.plan.call.reply
	if s.change != nil {
		e := soleReply(reply)
		returned, err := e.integers()
		require.NoError(t, err, "settlement %d", number)
		for i, want := range s.change {
			if -returned[i] != want {
				t.Fatalf("settlement %d:%s\nchanged by %d units, want %d",
					number, past(append(before, *s), &s.bounds[i].Key), -returned[i], want)
			}
		}
		return
	}
	foreign, taken, err := s.plan.readReply(reply)
	if err != nil || foreign != 0 || taken != 0 {
		t.Fatalf("request %d: read the reply: %d foreign values, %d foreign keys, %v", number, foreign, taken, err)
	}
	got := make([]decision.Status, len(s.bounds))
	require.NoError(t, s.plan.fillStatuses(got, true), "request %d", number)
	for i := range got {
		if got[i] != s.want[i] {
			t.Fatalf("request %d:%s\n got %+v", number, past(append(before, *s), &s.bounds[i].Key), got[i])
		}
	}
}

// past is what happened last to a bucket.
func past(steps []step, key *policy.Key) string {
	var lines []string
	for i := range steps {
		for j := range steps[i].bounds {
			if b := &steps[i].bounds[j]; b.Key == *key && steps[i].change != nil {
				lines = append(lines, fmt.Sprintf("\n%d: at %d %s settles %d to %+v with %+v\nwant %d", i, steps[i].now,
					b.Key.Policy, b.Cost, steps[i].plan.settlements[j], b.Policy.Limit.Spec(), steps[i].change[j]))
			} else if b.Key == *key {
				lines = append(lines, fmt.Sprintf("\n%d: at %d %s %s of cost %d under %+v\nwant %+v",
					i, steps[i].now, b.Key.Policy, b.Policy.Mode, b.Cost, b.Policy.Limit.Spec(), steps[i].want[j]))
			}
		}
	}
	return strings.Join(lines[max(0, len(lines)-5):], "")
}

// world is some buckets, the policy that each has at the moment, and the model of what they hold: see storetest.Model,
// which does not show its states.
type world struct {
	now    limit.Micros
	bounds []policy.Bound
	kept   map[policy.Key]kept

	charged []charge // the last takes, which may be given back, at times twice
}

type charge struct {
	bound   policy.Bound
	receipt limit.Receipt
}

// mostCharged is from how many takes one is chosen that is given back.
const mostCharged = 20

type kept struct {
	state  limit.State
	expiry limit.Micros
}

func drawBuckets(t *rapid.T) *world {
	w := world{now: storetest.Start, kept: map[policy.Key]kept{}}
	keys := []policy.Key{
		{Group: policy.ByTenant, GroupID: "acme"},
		{Group: policy.ByTenant, GroupID: "acme", Endpoint: "POST /a"},
		{Group: policy.ByTenant, GroupID: "other"},
		{Group: policy.ByTenant, GroupID: "acme", Kind: policy.KindUser, Subject: "u"},
		{Group: policy.ByTenant, GroupID: "acme", Kind: policy.KindUser, Subject: "u", Endpoint: "POST /a"},
		{Group: policy.ByIP, GroupID: "192.0.2.7"},
		{Group: policy.ByAll},
	}
	for i := range 9 { // with these a value is a long one
		keys = append(keys, policy.Key{Group: policy.ByTenant, GroupID: "large", Endpoint: fmt.Sprint("GET /", i)})
	}
	for i, key := range keys {
		key.Policy = fmt.Sprint("p", i)
		w.bounds = append(w.bounds, storetest.WithPolicy(policy.Bound{Key: key}, drawPolicy(t)))
	}
	return &w
}

func drawPolicy(t *rapid.T) *policy.Policy {
	l := storetest.Limits(storetest.Every...).Draw(t, "limit")
	if !l.IsConcurrency() && rapid.IntRange(0, 7).Draw(t, "soft only") == 0 {
		spec := l.Spec()
		spec.SoftOnly = true
		if warns, err := limit.New(spec); err == nil {
			l = &warns
		}
	}
	mode := rapid.SampledFrom([]policy.Mode{policy.Enforce, policy.Enforce, policy.Enforce, policy.Shadow}).Draw(t, "mode")
	return &policy.Policy{Name: "p", Limit: *l, Mode: mode}
}

// turn lets time pass, and at times changes a limit.
func (w *world) turn(t *rapid.T) {
	b := &w.bounds[rapid.IntRange(0, len(w.bounds)-1).Draw(t, "bucket")]
	w.now += storetest.Gap(t, &b.Policy.Limit)
	if rapid.IntRange(0, 19).Draw(t, "change") == 13 {
		*b = storetest.WithPolicy(*b, drawPolicy(t))
	}
}

// request draws bounds, at times two of one bucket: then perhaps with another limit each.
func (w *world) request(t *rapid.T) []policy.Bound {
	bounds := make([]policy.Bound, rapid.IntRange(1, 4).Draw(t, "bounds"))
	for i := range bounds {
		bounds[i] = w.bounds[rapid.IntRange(0, len(w.bounds)-1).Draw(t, "bound")]
		if rapid.IntRange(0, 29).Draw(t, "conflict") == 13 {
			bounds[i] = storetest.WithPolicy(bounds[i], drawPolicy(t))
		}
		bounds[i].Cost = storetest.Cost(t, &bounds[i].Policy.Limit)
	}
	return bounds
}

// nodeClock returns the clock of a node, which may differ from Redis's by almost the shortest period.
func (w *world) nodeClock(t *rapid.T) func() limit.Micros {
	const most = int64(20 * 3600 * limit.Second)
	now := w.now + limit.Micros(rapid.Int64Range(-most, most).Draw(t, "skew")*rapid.Int64Range(0, 1).Draw(t, "skewed"))
	return func() limit.Micros { return max(now, 0) }
}

// lose forgets the buckets of one key, as an eviction or a deletion does, and names the key.
func (w *world) lose(t *rapid.T) string {
	lost := &w.bounds[rapid.IntRange(0, len(w.bounds)-1).Draw(t, "lost bucket")].Key
	for i := range w.bounds {
		key := w.bounds[i].Key
		if key.Slots = false; sameSubject(&key, lost) {
			delete(w.kept, key) // slots are not in the subject's string
		}
	}
	return string(appendSubject(nil, lost))
}

// state is a copy of the bucket's state at the present, under the bound's limit.
func (w *world) state(b *policy.Bound) limit.State {
	var s limit.State
	if k, ok := w.kept[b.Key]; ok && k.expiry > w.now {
		s = k.state
		s.Log, s.Slots = slices.Clone(s.Log), slices.Clone(s.Slots)
	}
	b.Policy.Limit.Advance(&s, w.now)
	return s
}

func (w *world) wait(b *policy.Bound, asked int64) limit.Micros {
	s := w.state(b)
	return b.Policy.Limit.Wait(&s, w.now, asked)
}

func (w *world) spend(b *policy.Bound, id limit.SlotID) (r limit.Receipt, charged bool) {
	if b.Cost <= 0 {
		return r, false
	}
	s, l := w.state(b), &b.Policy.Limit
	r = l.Acquire(&s, w.now, b.Cost, id)
	w.kept[b.Key] = kept{s, l.Expiry(&s, w.now)}
	return r, true
}

func (w *world) charge(b *policy.Bound, id limit.SlotID, status *decision.Status) {
	if status.Receipt, status.Charged = w.spend(b, id); status.Charged {
		w.charged = append(w.charged[max(0, len(w.charged)-mostCharged):], charge{*b, status.Receipt})
	}
}

// settle draws takes to be settled, or refunded in part or as a whole, and settles them.
func (w *world) settle(t *rapid.T, s *step) ([]policy.Bound, []settlement) {
	var settlements []settlement
	s.bounds, s.change = nil, []int64{}
	for range rapid.IntRange(1, 3).Draw(t, "settlements") {
		c := w.charged[rapid.IntRange(0, len(w.charged)-1).Draw(t, "settlement of")]
		if rapid.IntRange(0, 3).Draw(t, "in part") == 0 {
			c.bound.Cost = rapid.Int64Range(1, c.bound.Cost).Draw(t, "of the cost")
		}
		l := &c.bound.Policy.Limit
		one := settlement{receipt: c.receipt}
		if !rapid.Bool().Draw(t, "refund") {
			one.actual = storetest.Actual(t, l, c.bound.Cost)
		}
		k := w.kept[c.bound.Key]
		if k.expiry <= w.now {
			k.state = limit.State{}
		}
		k.state.Log, k.state.Slots = slices.Clone(k.state.Log), slices.Clone(k.state.Slots)
		change := l.Settle(&k.state, w.now, c.bound.Cost, one.actual, one.receipt)
		if change > 0 {
			k.expiry = l.Expiry(&k.state, w.now)
		}
		if change != 0 {
			w.kept[c.bound.Key] = k
		}
		s.bounds, s.change = append(s.bounds, c.bound), append(s.change, change)
		settlements = append(settlements, one)
	}
	return s.bounds, settlements
}

// slotIDs returns the ids of the slots that a request takes, by bound.
func (p *scriptCall) slotIDs() []limit.SlotID {
	ids := make([]limit.SlotID, len(p.bounds))
	for i := range p.records {
		if r := &p.records[i]; r.spends {
			ids[r.bound] = r.slot
		}
	}
	return ids
}

// take answers a request as Take promises. ids has the id of a slot for each bound.
func (w *world) take(bounds []policy.Bound, ids []limit.SlotID) []decision.Status {
	statuses := make([]decision.Status, len(bounds))
	asked, denied := map[policy.Key]int64{}, false
	for i := range bounds {
		if b := &bounds[i]; b.Enforced() && b.Cost > 0 {
			asked[b.Key] += b.Cost
			statuses[i].Wait = w.wait(b, asked[b.Key])
			denied = denied || statuses[i].Wait > 0
		}
	}
	for i := range bounds {
		if !denied && bounds[i].Enforced() {
			w.charge(&bounds[i], ids[i], &statuses[i])
		}
	}
	for i := range bounds {
		if b := &bounds[i]; !b.Enforced() {
			if statuses[i].Wait = w.wait(b, b.Cost); !denied && statuses[i].Wait == 0 {
				w.charge(b, ids[i], &statuses[i])
			}
		}
	}
	for i := range bounds {
		s := w.state(&bounds[i])
		statuses[i].Status = bounds[i].Policy.Limit.Status(&s, w.now)
		statuses[i].Now, statuses[i].Source = w.now, decision.Redis
	}
	return statuses
}

// fataler is a test of either kind.
type fataler interface {
	Fatalf(format string, args ...any)
}

// compareStates demands that Redis holds what the model does: no more, and nothing else.
func (w *world) compareStates(t fataler, client *redis.Client) {
	for i := range w.bounds {
		key := &w.bounds[i].Key
		got, want := stored(t, client, key, w.now), w.kept[*key]
		if want.expiry <= w.now {
			want = kept{}
		}
		if key.Slots && want.expiry != 0 {
			want = w.keptSlots(want)
		}
		want.expiry = min(want.expiry, forever)
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("after the timeline, at %d, %s/%s holds\n     %+v\nwant %+v", w.now, key.GroupID, key.Policy, got, want)
		}
	}
}

func bySlot(a, b limit.Slot) int {
	return cmp.Or(cmp.Compare(a.Deadline, b.Deadline), cmp.Compare(a.ID[0], b.ID[0]))
}

// keptSlots is what Redis must hold of a concurrency limit that holds slots in the model.
func (w *world) keptSlots(want kept) kept {
	slices.SortFunc(want.state.Slots, bySlot)
	want.state.Mark, want.state.At, want.expiry = 0, 0, 0
	if n := len(want.state.Slots); n > 0 {
		want.expiry = want.state.Slots[n-1].Deadline
	}
	if want.expiry <= w.now {
		return kept{}
	}
	return want
}

// stored is what Redis holds of a bucket, entries of a log included.
func stored(t fataler, client redis.UniversalClient, key *policy.Key, now limit.Micros) kept {
	ctx := context.Background()
	if key.Slots {
		return storedSlots(t, client, key, now)
	}
	value, err := client.Get(ctx, string(appendSubject(nil, key))).Bytes()
	if err == redis.Nil {
		return kept{}
	}
	if err != nil {
		t.Fatalf("read %+v: %v", key, err)
	}
	if !isWellFormed(value) {
		t.Fatalf("%+v holds %q, which is not of our form", key, value)
	}
	found := findState(value, appendName(nil, key))
	if found == nil {
		return kept{}
	}
	state, ok := decode(found, now)
	if !ok {
		t.Fatalf("%+v holds %q, which is not of our form", key, found)
	}
	if state.Algorithm == limit.None {
		return kept{}
	}
	if state.Algorithm == limit.SlidingLog {
		entries, err := client.Get(ctx, string(appendLog(nil, key))).Bytes()
		if err != nil {
			t.Fatalf("read the log of %+v: %v", key, err)
		}
		state.Log = admissions(entries)
	}
	return kept{state, till(found)}
}

// storedSlots is what Redis holds of a concurrency limit.
func storedSlots(t fataler, client redis.UniversalClient, key *policy.Key, now limit.Micros) kept {
	entries, err := client.ZRangeWithScores(context.Background(), string(appendLog(nil, key)), 0, -1).Result()
	if err != nil {
		t.Fatalf("read the slots of %+v: %v", key, err)
	}
	k := kept{state: limit.State{Algorithm: limit.Concurrency, Base: 1, Spent: int64(len(entries))}}
	for _, entry := range entries {
		id := []byte(entry.Member.(string))
		slot := limit.Slot{Deadline: limit.Micros(entry.Score)}
		slot.ID = limit.SlotID{littleEndian(id[:7]), littleEndian(id[7:])}
		k.state.Slots, k.expiry = append(k.state.Slots, slot), slot.Deadline
	}
	if k.expiry <= now {
		return kept{}
	}
	slices.SortFunc(k.state.Slots, bySlot)
	return k
}

// admissions are the entries of a log that count.
func admissions(entries []byte) []limit.Admission {
	number := func(at int) int {
		return int(entries[at]) | int(entries[at+1])<<8 | int(entries[at+2])<<16 | int(entries[at+3])<<24
	}
	var log []limit.Admission
	before := littleEndian(entries[8:15])
	for i := number(0); i < number(4); i++ {
		entry := entries[15+i*14:]
		sum := littleEndian(entry[7:14])
		log = append(log, limit.Admission{At: limit.Micros(littleEndian(entry[:7])), Cost: sum - before})
		before = sum
	}
	return log
}
