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
	// always is an ask that every usage has room for.
	always = -(1 << 53)
	// unbounded is more than any log remembers.
	unbounded = 1 << 53
	// maxRecords is how many records, and how many values, a request can number.
	maxRecords = math.MaxUint8
)

var errTooMany = errors.New("a request has too many bounds")

// bucket is one bucket of a request, which one or several of its bounds spend from.
type bucket struct {
	key      *policy.Key
	place    int // of its value in the reply; the script counts from 1
	log      int // place of its entries' key among the keys; 0: not asked for yet
	asked    int64
	bounds   int // how many bounds it has
	enforced int // how many of them are enforced
	state    limit.State
	ours     bool // its key holds nothing foreign
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
	buckets  []bucket
	of       []int // bound → bucket
	records  []record
	enforced int // records that come first
	places   int // values in the reply

	text    []byte // all keys and fields; strings cut from one copy of it
	cuts    []int
	keys    []string
	fields  []string
	args    []any
	request []byte
	views   []view
	seen    []*record // bound → the record whose view is to be reported, if there is one
	now     limit.Micros
}

// forget drops what belongs to the request, keeping the memory.
func (p *plan) forget() {
	clear(p.buckets)
	p.bounds = nil
}

// compile makes the request of a take.
func (p *plan) compile(bounds []policy.Bound) error {
	p.bounds = bounds
	p.buckets, p.of, p.records = p.buckets[:0], p.of[:0], p.records[:0]
	for i := range bounds {
		p.of = append(p.of, p.bucketOf(&bounds[i]))
	}
	p.record()
	if len(p.records) > maxRecords || 2*len(p.buckets) > maxRecords {
		return errTooMany
	}
	p.layOut(modeTake)
	for i := range p.records {
		r := &p.records[i]
		bound := &bounds[r.bound]
		ask, cost := int64(always), int64(0)
		if r.asks {
			ask = units(&bound.Policy.Limit, r.asked)
		}
		if r.spends && bound.Cost > 0 {
			cost = price(&bound.Policy.Limit, bound.Cost)
		}
		p.appendRecord(r, ask, cost, bound.Policy.Limit.Units().Hard)
	}
	p.finish()
	return nil
}

// bucketOf is the number of the bound's bucket.
func (p *plan) bucketOf(b *policy.Bound) int {
	for i := range p.buckets {
		if *p.buckets[i].key == b.Key {
			return i
		}
	}
	p.buckets = append(p.buckets, bucket{key: &b.Key})
	return len(p.buckets) - 1
}

// record lists the steps: the enforced bounds are asked, then spent where that is a step of its own; then the shadows;
// then the logs that share a bucket.
func (p *plan) record() {
	for i := range p.bounds {
		b := &p.buckets[p.of[i]]
		b.bounds++
		if p.bounds[i].Enforced() {
			b.enforced++
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

// units is what the script must find room for, so that as much as asked fits.
func units(l *limit.Limit, asked int64) int64 {
	u := l.Units()
	switch {
	case asked <= 0 || l.Spec().SoftOnly:
		return always
	case asked <= l.Capacity():
		return asked * scale(&u)
	case u.Kind == limit.TokenBucket:
		return u.Hard + 1
	default:
		return l.Capacity() + 1
	}
}

// price is cost in the units that the script spends. A limit that only warns remembers no more than its capacity.
func price(l *limit.Limit, cost int64) int64 {
	u := l.Units()
	return min(cost, l.Capacity()) * scale(&u)
}

// scale is how many of the script's units a token has: windows are counted in tokens.
func scale(u *limit.Units) int64 {
	if u.Kind == limit.TokenBucket {
		return u.Base
	}
	return 1
}

// layOut gives every bucket its place, and writes the keys and the head of the request: fields of hashes first, hash by
// hash, then strings.
func (p *plan) layOut(mode byte) {
	p.text, p.cuts, p.places = p.text[:0], p.cuts[:0], 0
	p.request = append(p.request[:0], mode, 0, 0, byte(p.enforced), byte(len(p.records)))
	for i := range p.buckets {
		if b := &p.buckets[i]; b.place == 0 && inHash(b.key) {
			p.layOutHash(i)
		}
	}
	hashes := len(p.cuts)
	for i := range p.buckets {
		if b := &p.buckets[i]; b.place == 0 {
			p.places++
			b.place = p.places
			p.text = appendString(p.text, b.key)
			p.cuts = append(p.cuts, len(p.text))
		}
	}
	p.request[1], p.request[2] = byte(hashes), byte(len(p.cuts)-hashes)
	for i := range p.records {
		r := &p.records[i]
		if b := &p.buckets[r.bucket]; b.log == 0 && p.bounds[r.bound].Policy.Limit.Units().Kind == limit.SlidingLog {
			p.text = appendLog(p.text, b.key)
			p.cuts = append(p.cuts, len(p.text))
			b.log = len(p.cuts)
		}
	}
	keys := len(p.cuts)
	p.cutFields()
	p.cut(keys)
}

// layOutHash places the buckets of the hash that bucket i is in.
func (p *plan) layOutHash(i int) {
	p.text = appendHash(p.text, p.buckets[i].key)
	p.cuts = append(p.cuts, len(p.text))
	before := p.places
	for j := i; j < len(p.buckets); j++ {
		if b := &p.buckets[j]; inHash(b.key) && sameHash(b.key, p.buckets[i].key) {
			p.places++
			b.place = p.places
		}
	}
	p.places++ // the hash's life
	p.request = append(p.request, byte(p.places-before))
}

// cutFields writes the fields in the order of their places, each hash's life at its end.
func (p *plan) cutFields() {
	for i := range p.buckets {
		if !inHash(p.buckets[i].key) || !p.firstOfHash(i) {
			continue
		}
		for j := i; j < len(p.buckets); j++ {
			if b := &p.buckets[j]; inHash(b.key) && sameHash(b.key, p.buckets[i].key) {
				p.text = appendField(p.text, b.key)
				p.cuts = append(p.cuts, len(p.text))
			}
		}
		p.text = append(p.text, ':')
		p.cuts = append(p.cuts, len(p.text))
	}
}

func (p *plan) firstOfHash(i int) bool {
	for j := range i {
		if inHash(p.buckets[j].key) && sameHash(p.buckets[j].key, p.buckets[i].key) {
			return false
		}
	}
	return true
}

// cut cuts the text into keys and fields.
func (p *plan) cut(keys int) {
	text, from := string(p.text), 0
	p.keys, p.fields = p.keys[:0], p.fields[:0]
	for i, to := range p.cuts {
		if i < keys {
			p.keys = append(p.keys, text[from:to])
		} else {
			p.fields = append(p.fields, text[from:to])
		}
		from = to
	}
}

// appendRecord writes a record, with three numbers of its algorithm's own (see the fragment of that name).
func (p *plan) appendRecord(r *record, x, y, z int64) {
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
	p.request = append(p.request, byte(u.Kind), byte(b.place))
	for _, n := range [...]int64{x, y, z, own[0], own[1], own[2]} {
		p.request = binary.LittleEndian.AppendUint64(p.request, math.Float64bits(float64(n)))
	}
}

// finish makes the arguments: the request and the fields. A pointer needs no memory of its own in an interface.
func (p *plan) finish() {
	p.args = append(p.args[:0], p.request)
	for i := range p.fields {
		p.args = append(p.args, &p.fields[i])
	}
}
