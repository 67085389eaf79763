package redis

import (
	"cmp"
	"encoding/binary"
	"errors"
	"math"
	"slices"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/store"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

const (
	modeTake   = 0
	modeSettle = 1
	modePeek   = 2
	// unbounded is a room that fits every usage, and more tokens than any log remembers.
	unbounded = 1 << 53
	// sharedSubject marks a subject of which a bucket has several records.
	sharedSubject = 128
	// maxSubjects is the largest number of strings in a request, beside that mark.
	maxSubjects = sharedSubject - 1
	// keptReply is how many bytes for a reply are kept for the next request.
	keptReply = 64 << 10
	// maxRecords is the largest number of records in a request.
	maxRecords = math.MaxUint8
)

var errTooMany = errors.New("a request has too many bounds")

// subject is one Redis string of a request, which holds buckets of one tenant, user, address, … It is the head of all
// of them, or one chunk.
type subject struct {
	key      *policy.Key // of any of its buckets
	level    int         // of the subject: it has 2^level chunks
	chunk    int         // or head
	shared   bool        // one of its buckets has several records
	value    []byte      // as the script found it: a part of the reply
	readable bool        // its key holds no foreign type
}

// head is the chunk number of a head.
const head = -1

// bucket is one bucket of a request, which one or several of its bounds spend from.
type bucket struct {
	key      *policy.Key
	subject  int // its place among the subjects, from 0
	logKey   int // place of its entries' or slots' key among the keys, from 1; 0: it has none
	demand   int64
	bounds   int // how many bounds spend from it
	enforced int // how many of them are enforced
	name     [nameSize]byte
	state    limit.State
	charged  bool // state is not what the script found, but what it has spent from

	shown    *record // of a sliding log: the last record whose view has nothing that is refunded
	refunded bool    // the script has spent from it, and that is refunded because another call of the request denies
}

// record is one step of the script. Usually a bound has one. Enforced bounds that share a bucket have two, because each
// is checked, together with those before it, against the bucket as it was, and is spent only then. A sliding log that
// shares its bucket is read once more in the end, because only the script has its entries.
type record struct {
	bound  int
	bucket int
	checks bool
	spends bool
	demand int64 // tokens that must fit, with the tokens of the bounds before it
	denied bool
	log    *view // of a sliding log or a concurrency limit

	slot limit.SlotID // that it takes of a concurrency limit
}

// viewsOnly reports whether the record neither checks nor spends, but only reads entries.
func (r *record) viewsOnly() bool { return !r.checks && !r.spends }

// scriptCall is one call of the script: it compiles the request and reads the reply. It is reused.
type scriptCall struct {
	levels   *levels             // nil: no subject is split
	clock    func() limit.Micros // the node's, for calendars; Redis's picks among the bounds around it
	bounds   []policy.Bound
	mode     byte // modeTake or modePeek, unless it has settlements
	subjects []subject
	buckets  []bucket
	bucketOf []int // bound → bucket
	order    []int // the bounds as the records of a take name them: bounds of one string and endpoint together
	records  []record
	enforced int // records that come first

	text    []byte // all keys; strings cut from one copy of it
	cuts    []int
	request []byte
	call    call

	settlements []settlement // one for each bound; nil: it is a take or a peek

	now     limit.Micros
	views   []view
	toSplit []int     // numbers of the strings that should be split, from 1
	shown   []*record // bound → the record whose view is reported, or nil
}

// reset drops what belongs to the request, and keeps the memory.
func (p *scriptCall) reset() {
	clear(p.subjects)
	clear(p.buckets)
	p.bounds, p.settlements, p.mode = nil, nil, modeTake
	if cap(p.call.reply) > keptReply {
		p.call.reply = nil
	}
}

// compile makes the request of a take, or of a peek.
func (p *scriptCall) compile(bounds []policy.Bound) error {
	p.numberBuckets(bounds)
	p.listRecords()
	if err := p.writeHeader(p.mode); err != nil {
		return err
	}
	for i := range p.records {
		r := &p.records[i]
		bound := &bounds[r.bound]
		cost := int64(0)
		if r.spends {
			cost = costInUnits(&bound.Policy.Limit, max(bound.Cost, 0))
		}
		if cost > 0 && bound.Key.Slots {
			r.slot = store.NewSlotID()
		}
		p.appendRecord(r)
		p.appendNumbers(roomFor(&bound.Policy.Limit, r.demand), cost)
		p.appendParameters(r)
	}
	p.call.args = append(p.call.args[:0], p.request)
	return nil
}

// numberBuckets finds the buckets and subjects of bounds.
func (p *scriptCall) numberBuckets(bounds []policy.Bound) {
	p.bounds = bounds
	p.subjects, p.buckets, p.bucketOf, p.records = p.subjects[:0], p.buckets[:0], p.bucketOf[:0], p.records[:0]
	for i := range bounds {
		p.bucketOf = append(p.bucketOf, p.findBucket(&bounds[i]))
		b := &p.buckets[p.bucketOf[i]]
		if b.bounds++; b.bounds > 1 {
			p.subjects[b.subject].shared = true
		}
	}
}

// findBucket returns the number of the bound's bucket.
func (p *scriptCall) findBucket(b *policy.Bound) int {
	for i := range p.buckets {
		if *p.buckets[i].key == b.Key {
			return i
		}
	}
	p.buckets = append(p.buckets, bucket{key: &b.Key})
	made := &p.buckets[len(p.buckets)-1]
	appendName(made.name[:0], &b.Key)
	made.subject = p.stringOf(&b.Key, made.name)
	return len(p.buckets) - 1
}

// stringOf returns the number of the string that holds a bucket: its subject's head, or a chunk behind that.
func (p *scriptCall) stringOf(k *policy.Key, name [nameSize]byte) int {
	at := slices.IndexFunc(p.subjects, func(s subject) bool { return s.chunk == head && sameSubject(s.key, k) })
	if at < 0 {
		at = len(p.subjects)
		p.subjects = append(p.subjects, subject{key: k, level: p.levels.level(k), chunk: head})
	}
	level := p.subjects[at].level
	chunk := chunkOf(name[:], level)
	if chunk == head {
		return at
	}
	for at++; at < len(p.subjects) && p.subjects[at].chunk != head; at++ {
		if p.subjects[at].chunk == chunk {
			return at
		}
	}
	p.subjects = slices.Insert(p.subjects, at, subject{key: k, level: level, chunk: chunk})
	for i := range p.buckets {
		if p.buckets[i].subject >= at {
			p.buckets[i].subject++
		}
	}
	return at
}

// listRecords lists the steps: the enforced bounds are checked, then spent where that is a step of its own; then come
// the shadows, then the logs that share a bucket.
func (p *scriptCall) listRecords() {
	p.sortBounds()
	for i := range p.bounds {
		if p.bounds[i].Enforced() {
			p.buckets[p.bucketOf[i]].enforced++
		}
	}
	for _, i := range p.order {
		bound, b := &p.bounds[i], &p.buckets[p.bucketOf[i]]
		if bound.Enforced() {
			b.demand = min(b.demand+min(max(bound.Cost, 0), 1<<61), 1<<61)
			r := record{bound: i, checks: true, spends: b.enforced == 1}
			if bound.Cost > 0 {
				r.demand = b.demand
			}
			p.addRecord(r)
		}
	}
	for _, i := range p.order {
		if p.bounds[i].Enforced() && p.buckets[p.bucketOf[i]].enforced > 1 {
			p.addRecord(record{bound: i, spends: true})
		}
	}
	p.enforced = len(p.records)
	for _, i := range p.order {
		if !p.bounds[i].Enforced() {
			p.addRecord(record{bound: i, checks: true, spends: true, demand: p.bounds[i].Cost})
		}
	}
	for _, i := range p.order {
		if p.buckets[p.bucketOf[i]].bounds > 1 && keepsEntries(&p.bounds[i]) {
			p.addRecord(record{bound: i})
		}
	}
}

// keepsEntries reports whether what the bound counts is a key of its own.
func keepsEntries(b *policy.Bound) bool {
	return b.Key.Slots || b.Policy.Limit.Units().Kind == limit.SlidingLog
}

func (p *scriptCall) addRecord(r record) {
	r.bucket = p.bucketOf[r.bound]
	p.records = append(p.records, r)
}

// sortBounds orders the bounds by the string that holds their bucket, and there by endpoint: so buckets that are spent
// from together come to lie together, and the script writes them at once. Bounds of one bucket keep their order, in
// which they are checked.
func (p *scriptCall) sortBounds() {
	p.order = p.order[:0]
	for i := range p.bounds {
		p.order = append(p.order, i)
	}
	slices.SortStableFunc(p.order, func(a, b int) int {
		one, other := &p.buckets[p.bucketOf[a]], &p.buckets[p.bucketOf[b]]
		return cmp.Or(cmp.Compare(one.subject, other.subject), cmp.Compare(one.name[0], other.name[0]))
	})
}

// roomFor returns the most usage, in the script's units, with which so many tokens fit; below 0 they never do.
func roomFor(l *limit.Limit, demand int64) int64 {
	u := l.Units()
	if demand > 0 && !l.Spec().SoftOnly {
		if demand > l.Capacity() {
			return -1
		}
		return u.Hard - demand*u.Base
	}
	if u.Kind == limit.TokenBucket {
		return u.Hard + limit.MaxProduct
	}
	return unbounded
}

// costInUnits converts a cost to what the script counts: units of a token bucket, else tokens. A limit that only warns
// remembers no more than its capacity.
func costInUnits(l *limit.Limit, cost int64) int64 {
	cost = min(cost, l.Capacity())
	if u := l.Units(); u.Kind == limit.TokenBucket {
		return cost * u.Base
	}
	return cost
}

// writeHeader writes the keys, subjects first, and the first bytes of the request, or returns errTooMany.
func (p *scriptCall) writeHeader(mode byte) error {
	if len(p.records) > maxRecords || len(p.subjects) > maxSubjects {
		return errTooMany
	}
	p.text, p.cuts, p.call.keys = p.text[:0], p.cuts[:0], p.call.keys[:0]
	for i := range p.subjects {
		if s := &p.subjects[i]; s.chunk == head {
			p.text = appendSubject(p.text, s.key)
		} else {
			p.text = appendChunk(p.text, s.key, s.chunk)
		}
		p.cuts = append(p.cuts, len(p.text))
	}
	for i := range p.records {
		r := &p.records[i]
		if b := &p.buckets[r.bucket]; b.logKey == 0 && keepsEntries(&p.bounds[r.bound]) {
			p.text = appendLog(p.text, b.key)
			p.cuts = append(p.cuts, len(p.text))
			b.logKey = len(p.cuts)
		}
	}
	text, from := string(p.text), 0
	for _, to := range p.cuts {
		p.call.keys = append(p.call.keys, text[from:to])
		from = to
	}
	p.request = binary.LittleEndian.AppendUint16(append(p.request[:0], mode), uint16(len(p.call.keys)))
	p.request = append(p.request, byte(len(p.subjects)), byte(p.enforced), byte(len(p.records)))
	for i := range p.subjects {
		s := &p.subjects[i]
		first := firstByte(s.level)
		if s.chunk != head {
			first |= 128
		}
		p.request = append(p.request, first)
	}
	return nil
}

// appendRecord appends the start of a record: how its bucket counts, and where it is.
func (p *scriptCall) appendRecord(r *record) {
	b := &p.buckets[r.bucket]
	u := p.bounds[r.bound].Policy.Limit.Units()
	place := byte(b.subject + 1)
	if p.subjects[b.subject].shared {
		place |= sharedSubject
	}
	p.request = append(p.request, byte(u.Kind)|u.Tag<<4, place)
	name := b.name
	if b.key.Slots {
		binary.LittleEndian.PutUint16(name[:], uint16(b.logKey))
	}
	p.request = append(p.request, name[:]...)
}

// appendParameters appends the three parameters of the algorithm, see its Lua file.
func (p *scriptCall) appendParameters(r *record) {
	l, b := &p.bounds[r.bound].Policy.Limit, &p.buckets[r.bucket]
	u, window := l.Units(), int64(l.Spec().Window)
	switch u.Kind {
	case limit.TokenBucket:
		p.appendNumbers(u.Rate, u.Base, int64(u.Tick))
	case limit.SlidingWindow:
		p.appendNumbers(window, u.Ticks, int64(u.Tick))
	case limit.SlidingLog:
		most := int64(unbounded)
		if l.Spec().SoftOnly {
			most = u.Hard
		}
		p.appendNumbers(window, most, int64(b.logKey))
	case limit.CalendarWindow:
		around := l.Calendar().Bounds(int64(p.clock()))
		lengths := (around.Start-around.Before)/int64(limit.Second)<<25 + (around.After-around.End)/int64(limit.Second)
		p.appendNumbers(around.Start, around.End, lengths)
	case limit.Concurrency:
		p.appendNumbers(window, r.slot[0], r.slot[1])
	default:
		p.appendNumbers(window, 0, 0)
	}
}

func (p *scriptCall) appendNumbers(numbers ...int64) {
	for _, n := range numbers {
		p.request = binary.LittleEndian.AppendUint64(p.request, math.Float64bits(float64(n)))
	}
}
