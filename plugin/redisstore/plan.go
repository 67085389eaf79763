package redisstore

import (
	"encoding/binary"
	"errors"
	"math"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
)

const (
	modeTake   = 0
	modeRefund = 1
	// always is a room that every usage fits in.
	always = 1 << 53
	// sharedSubject marks a subject of which a bucket has several records.
	sharedSubject = 128
	// maxSubjects is how many subjects a request can number beside that mark.
	maxSubjects = sharedSubject - 1
	// unbounded is more than any log remembers.
	unbounded = 1 << 53
	// maxRecords is how many records a request can number.
	maxRecords = math.MaxUint8
)

var errTooMany = errors.New("a request has too many bounds")

// subject is one Redis key of a request: a string that holds the buckets of one tenant, user, address, …
type subject struct {
	key    *policy.Key // of any of its buckets
	shared bool        // one of its buckets has several records
	value  string      // what the script found
	ours   bool        // its key holds nothing foreign
}

// bucket is one bucket of a request, which one or several of its bounds spend from.
type bucket struct {
	key      *policy.Key
	subject  int // its place among the subjects, from 0
	log      int // place of its entries' key among the keys, from 1; 0: it has none
	asked    int64
	bounds   int // how many bounds it has
	enforced int // how many of them are enforced
	state    limit.State
	charged  bool // state is not what the script found, but what it has spent from
}

// record is one step of the script. Usually a bound has one. Enforced bounds that share a bucket have two, because each
// must be asked, together with those before it, of the bucket as it was, and is spent only then. A sliding log that
// shares its bucket is looked at once more in the end: what others have left of its entries only the script can tell.
type record struct {
	bound   int
	bucket  int
	asks    bool
	spends  bool
	asked   int64 // tokens that must fit, with those of the bounds before it
	refused bool
	log     *view // what the script says of a sliding log
}

// looks tells whether the record is there for its view alone.
func (r *record) looks() bool { return !r.asks && !r.spends }

// plan is one call of the script: how it is asked, and how its reply is read. It is reused.
type plan struct {
	bounds   []policy.Bound
	subjects []subject
	buckets  []bucket
	of       []int // bound → bucket
	records  []record
	enforced int // records that come first

	text    []byte // all keys; strings cut from one copy of it
	cuts    []int
	keys    []string
	args    []any
	request []byte

	now   limit.Micros
	views []view
	seen  []*record // bound → the record whose view is to be reported, if there is one
}

// forget drops what belongs to the request, keeping the memory.
func (p *plan) forget() {
	clear(p.subjects)
	clear(p.buckets)
	p.bounds = nil
}

// compile makes the request of a take.
func (p *plan) compile(bounds []policy.Bound) error {
	p.number(bounds)
	p.record()
	if p.tooMany() {
		return errTooMany
	}
	p.begin(modeTake)
	for i := range p.records {
		r := &p.records[i]
		bound := &bounds[r.bound]
		asked, cost := int64(0), int64(0)
		if r.asks {
			asked = r.asked
		}
		if r.spends && bound.Cost > 0 {
			cost = price(&bound.Policy.Limit, bound.Cost)
		}
		p.appendRecord(r, room(&bound.Policy.Limit, asked), cost)
	}
	p.end()
	return nil
}

func (p *plan) tooMany() bool { return len(p.records) > maxRecords || len(p.subjects) > maxSubjects }

// number finds the buckets and subjects of bounds.
func (p *plan) number(bounds []policy.Bound) {
	p.bounds = bounds
	p.subjects, p.buckets, p.of, p.records = p.subjects[:0], p.buckets[:0], p.of[:0], p.records[:0]
	for i := range bounds {
		p.of = append(p.of, p.bucketOf(&bounds[i]))
		b := &p.buckets[p.of[i]]
		if b.bounds++; b.bounds > 1 {
			p.subjects[b.subject].shared = true
		}
	}
}

// bucketOf is the number of the bound's bucket.
func (p *plan) bucketOf(b *policy.Bound) int {
	for i := range p.buckets {
		if *p.buckets[i].key == b.Key {
			return i
		}
	}
	p.buckets = append(p.buckets, bucket{key: &b.Key, subject: p.subjectOf(&b.Key)})
	return len(p.buckets) - 1
}

// subjectOf is the number of the key's subject.
func (p *plan) subjectOf(k *policy.Key) int {
	for i := range p.subjects {
		if sameSubject(p.subjects[i].key, k) {
			return i
		}
	}
	p.subjects = append(p.subjects, subject{key: k})
	return len(p.subjects) - 1
}

// record lists the steps: the enforced bounds are asked, then spent where that is a step of its own; then the shadows;
// then the logs that share a bucket.
func (p *plan) record() {
	for i := range p.bounds {
		if p.bounds[i].Enforced() {
			p.buckets[p.of[i]].enforced++
		}
	}
	for i := range p.bounds {
		bound, b := &p.bounds[i], &p.buckets[p.of[i]]
		if bound.Enforced() {
			b.asked = min(b.asked+min(max(bound.Cost, 0), 1<<61), 1<<61)
			asked := b.asked
			if bound.Cost <= 0 {
				asked = 0
			}
			p.records = append(p.records, record{bound: i, bucket: p.of[i], asks: true, spends: b.enforced == 1, asked: asked})
		}
	}
	for i := range p.bounds {
		if p.bounds[i].Enforced() && p.buckets[p.of[i]].enforced > 1 {
			p.records = append(p.records, record{bound: i, bucket: p.of[i], spends: true})
		}
	}
	p.enforced = len(p.records)
	for i := range p.bounds {
		if !p.bounds[i].Enforced() {
			p.records = append(p.records, record{bound: i, bucket: p.of[i], asks: true, spends: true, asked: p.bounds[i].Cost})
		}
	}
	for i := range p.bounds {
		if p.buckets[p.of[i]].bounds > 1 && p.bounds[i].Policy.Limit.Units().Kind == limit.SlidingLog {
			p.records = append(p.records, record{bound: i, bucket: p.of[i]})
		}
	}
}

// room is the most usage, in the script's units, with which so many tokens fit; below 0 they never do.
func room(l *limit.Limit, asked int64) int64 {
	u := l.Units()
	if asked > 0 && !l.Spec().SoftOnly {
		if asked > l.Capacity() {
			return -1
		}
		return u.Hard - asked*u.Base
	}
	if u.Kind == limit.TokenBucket {
		return u.Hard + limit.MaxProduct
	}
	return always
}

// price is cost in what the script counts: units of a token bucket, else tokens. A limit that only warns remembers no
// more than its capacity.
func price(l *limit.Limit, cost int64) int64 {
	cost = min(cost, l.Capacity())
	if u := l.Units(); u.Kind == limit.TokenBucket {
		return cost * u.Base
	}
	return cost
}

// begin writes the keys, subjects first, and the head of the request.
func (p *plan) begin(mode byte) {
	p.text, p.cuts, p.keys = p.text[:0], p.cuts[:0], p.keys[:0]
	for i := range p.subjects {
		p.text = appendSubject(p.text, p.subjects[i].key)
		p.cuts = append(p.cuts, len(p.text))
	}
	for i := range p.records {
		r := &p.records[i]
		if b := &p.buckets[r.bucket]; b.log == 0 && p.bounds[r.bound].Policy.Limit.Units().Kind == limit.SlidingLog {
			p.text = appendLog(p.text, b.key)
			p.cuts = append(p.cuts, len(p.text))
			b.log = len(p.cuts)
		}
	}
	text, from := string(p.text), 0
	for _, to := range p.cuts {
		p.keys = append(p.keys, text[from:to])
		from = to
	}
	p.request = append(p.request[:0], mode, byte(len(p.subjects)), byte(p.enforced), byte(len(p.records)))
}

// end makes the request the argument.
func (p *plan) end() { p.args = append(p.args[:0], p.request) }

// appendRecord writes a record: two numbers, and three of its algorithm's own (see the fragment of that name).
func (p *plan) appendRecord(r *record, first, second int64) {
	l, b := &p.bounds[r.bound].Policy.Limit, &p.buckets[r.bucket]
	u, window := l.Units(), int64(l.Spec().Window)
	own := [3]int64{window}
	switch u.Kind {
	case limit.TokenBucket:
		own = [3]int64{u.Rate, u.Base, int64(u.Tick)}
	case limit.SlidingWindow:
		own = [3]int64{window, u.Ticks, int64(u.Tick)}
	case limit.SlidingLog:
		own = [3]int64{window, unbounded, int64(b.log)}
		if l.Spec().SoftOnly {
			own[1] = u.Hard
		}
	}
	place := byte(b.subject + 1)
	if p.subjects[b.subject].shared {
		place |= sharedSubject
	}
	p.request = append(p.request, byte(u.Kind), place)
	p.request = appendName(p.request, b.key)
	for _, n := range [...]int64{first, second, own[0], own[1], own[2]} {
		p.request = binary.LittleEndian.AppendUint64(p.request, math.Float64bits(float64(n)))
	}
}
