package lease

import "github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limit"

// ledger is what this node holds of one bucket: tokens that the bucket was charged for and no request has spent yet. It
// has no clock and does no I/O. The zero value holds nothing.
//
// Every token has one way in and ends in one of three: Granted = Spent + Returned + Expired + leaving + what is out,
// but for those only asked for.
type ledger struct {
	grants    [2]grant // the first is spent first; one without tokens is none
	requested int64    // tokens that a renewal under way may bring
	pending   int64    // tokens drawn for requests whose other bounds are still being asked
	returning int64    // tokens that are being given back, and that nobody can spend any more
	sums      Tokens
}

// grant is tokens taken from the bucket at once.
type grant struct {
	tokens  int64
	receipt limit.Receipt // by which they can be given back
	since   limit.Micros  // this node's clock before they were asked for
	ends    limit.Micros  // this node's clock from which they must not be spent
}

// draw is what one request has taken out of a ledger.
type draw struct {
	grant
	epoch uint64 // of the entry, see there
}

// Tokens count what became of the tokens that were leased.
type Tokens struct {
	Granted  int64 // taken from shared buckets ahead of need
	Spent    int64 // by requests that were admitted
	Returned int64 // that a shared bucket got back
	Expired  int64 // ended with their window or unspent, or given back to a bucket that has refilled without them
}

func (t *Tokens) add(other Tokens) {
	t.Granted += other.Granted
	t.Spent += other.Spent
	t.Returned += other.Returned
	t.Expired += other.Expired
}

// available is how many tokens can be drawn, if none has ended meanwhile.
func (l *ledger) available() int64 { return l.grants[0].tokens + l.grants[1].tokens }

// outstanding is how many tokens the bucket lacks, or may lack soon, that a request may still spend.
func (l *ledger) outstanding() int64 { return l.available() + l.pending + l.requested }

// beginRenewal notes that a renewal is under way.
func (l *ledger) beginRenewal(tokens int64) { l.requested = tokens }

// endRenewal ends a renewal. A grant without tokens is a refusal, or no endRenewal.
func (l *ledger) endRenewal(g grant) {
	l.requested = 0
	l.sums.Granted += g.tokens
	l.addGrant(g)
}

// addGrant adds a grant behind the others. Where there is no place for a third, two become one that has the worse of both.
func (l *ledger) addGrant(g grant) {
	switch {
	case g.tokens == 0:
	case l.grants[0].tokens == 0:
		l.grants[0] = g
	case l.grants[1].tokens == 0:
		l.grants[1] = g
	default:
		l.grants[1] = joinGrants(l.grants[1], g)
	}
}

// joinGrants is two grants as one: nothing that is true of it is untrue of a part.
func joinGrants(a, b grant) grant {
	switch {
	case a.tokens == 0:
		return b
	case b.tokens == 0:
		return a
	}
	return grant{
		tokens: a.tokens + b.tokens, receipt: a.receipt.Join(b.receipt), since: min(a.since, b.since), ends: min(a.ends, b.ends),
	}
}

// draw takes cost tokens for a request that must then be settled, or tells that there are not as many.
func (l *ledger) draw(d *grant, cost int64, now limit.Micros) bool {
	first, second := &l.grants[0], &l.grants[1]
	if cost < first.tokens && now < first.ends { // as most do
		*d = *first
		d.tokens = cost
		first.tokens -= cost
		l.pending += cost
		return true
	}
	l.expire(now)
	if l.available() == 0 || cost > l.available() {
		return false
	}
	*d = *first
	if d.tokens = min(cost, first.tokens); d.tokens < cost {
		rest := *second
		rest.tokens = cost - d.tokens
		*d = joinGrants(*d, rest)
		second.tokens -= rest.tokens
	}
	if first.tokens -= min(cost, first.tokens); first.tokens == 0 {
		*first, *second = *second, grant{}
	}
	l.pending += cost
	return true
}

// settle ends a draw: its tokens are spent, or come back to be spent by others, if they have not ended.
func (l *ledger) settle(d *grant, admitted bool, now limit.Micros) {
	l.pending -= d.tokens
	switch {
	case admitted:
		l.sums.Spent += d.tokens
	case now >= d.ends:
		l.sums.Expired += d.tokens
	default:
		l.grants[0] = joinGrants(*d, l.grants[0])
	}
}

// expire drops what has ended.
func (l *ledger) expire(now limit.Micros) {
	for i := range l.grants {
		if g := &l.grants[i]; g.tokens > 0 && now >= g.ends {
			l.sums.Expired += g.tokens
			*g = grant{}
		}
	}
	if l.grants[0].tokens == 0 {
		l.grants[0], l.grants[1] = l.grants[1], grant{}
	}
}

// withdraw takes the grants out that were asked for before an instant, to be given back to the bucket. What has ended
// is not among them. Each must then be returned.
func (l *ledger) withdraw(before, now limit.Micros) [2]grant {
	l.expire(now)
	var taken [2]grant
	for i := range l.grants {
		if g := &l.grants[i]; g.tokens > 0 && g.since < before {
			l.returning += g.tokens
			taken[i], *g = *g, grant{}
		}
	}
	l.expire(now)
	return taken
}

// endReturn ends the return of so many tokens, of which the bucket got back some.
func (l *ledger) endReturn(tokens, got int64) {
	l.returning -= tokens
	l.sums.Returned += got
	l.sums.Expired += tokens - got
}
