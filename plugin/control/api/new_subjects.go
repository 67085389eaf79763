package api

import (
	"cmp"
	"context"
	"fmt"
	"hash/maphash"
	"net/http"
	"strconv"
	"sync"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
)

const (
	newSubjectsPerSecond = 100            // of one token, by default
	newSubjectsBurst     = 10             // seconds
	leastNewSubjects     = 3 * maxChecks  // burst; any batch fits
	maxSubjectsPerToken  = 64 << 10       // remembered, of one token
	maxSubjects          = 1 << 20        // remembered, of all tokens: about 40 MB
	maxSubjectTokens     = 10_000         // with subjects that are remembered
	byNewSubjects        = "new_subjects" // label of limited_total
)

// subject is a user, a credential or an address with buckets of its own, or a reservation.
type subject struct {
	kind policy.Kind
	name string
}

// reservationKind is the kind of a reservation's id, which no bucket has.
const reservationKind policy.Kind = 1<<8 - 1

// subjectLimiter bounds how many new subjects each token may name. Each has buckets or an entry in Redis, and callers
// choose the names freely. It remembers hashes of recent subjects, in bounded memory. It is safe for concurrent use.
type subjectLimiter struct {
	mu     sync.Mutex
	limit  limit.Limit
	seed   maphash.Seed
	hashes int // remembered, of all tokens
	tokens map[string]*recentSubjects
}

// recentSubjects are the subjects that one token has named recently. A subject moves to recent when it is named again;
// older is dropped when recent is full.
type recentSubjects struct {
	recent, older map[uint64]struct{}
	spent         limit.State
	used          limit.Micros
}

// newSubjectLimiter returns a limiter; 0 stands for newSubjectsPerSecond.
func newSubjectLimiter(perSecond int64) (*subjectLimiter, error) {
	perSecond = cmp.Or(perSecond, newSubjectsPerSecond)
	l, err := limit.New(limit.Spec{
		Algorithm: limit.TokenBucket, Quantity: perSecond, Window: limit.Second,
		Burst: max(newSubjectsBurst*perSecond, leastNewSubjects),
	})
	if err != nil {
		return nil, fmt.Errorf("make the limit of new subjects: %w", err)
	}
	return &subjectLimiter{limit: l, seed: maphash.MakeSeed(), tokens: map[string]*recentSubjects{}}, nil
}

// admit remembers the subjects and returns 0. If too many of them are new, it returns how long the token has to wait,
// and remembers none.
func (n *subjectLimiter) admit(token string, named map[subject]struct{}, now limit.Micros) limit.Micros {
	n.mu.Lock()
	defer n.mu.Unlock()
	t := n.subjectsOf(token, now)
	hashes, fresh := make([]uint64, 0, len(named)), int64(0)
	for s := range named {
		h := maphash.Comparable(n.seed, s)
		hashes = append(hashes, h)
		if !t.contains(h) {
			fresh++
		}
	}
	n.limit.Advance(&t.spent, now)
	if wait := n.limit.Wait(&t.spent, now, fresh); wait > 0 {
		return wait
	}
	n.limit.Spend(&t.spent, now, fresh)
	before := t.size()
	for _, h := range hashes {
		t.add(h)
	}
	n.hashes += t.size() - before
	for n.hashes > maxSubjects {
		n.evictOlder()
	}
	return 0
}

// subjectsOf returns the subjects of a token. A new token may evict the one that was idle longest.
func (n *subjectLimiter) subjectsOf(name string, now limit.Micros) *recentSubjects {
	t := n.tokens[name]
	if t == nil {
		if len(n.tokens) >= maxSubjectTokens {
			idle := name
			for other, k := range n.tokens {
				if idle == name || k.used < n.tokens[idle].used {
					idle = other
				}
			}
			n.hashes -= n.tokens[idle].size()
			delete(n.tokens, idle)
		}
		t = &recentSubjects{recent: map[uint64]struct{}{}}
		n.tokens[name] = t
	}
	t.used = now
	return t
}

// evictOlder drops the older half of the subjects of the token with the most.
func (n *subjectLimiter) evictOlder() {
	var most *recentSubjects
	for _, t := range n.tokens {
		if most == nil || t.size() > most.size() {
			most = t
		}
	}
	before := most.size()
	if len(most.older) == 0 {
		most.recent = map[uint64]struct{}{}
	}
	most.older = nil
	n.hashes += most.size() - before
}

// size returns how many subjects are remembered.
func (t *recentSubjects) size() int { return len(t.recent) + len(t.older) }

// contains reports whether a subject is remembered.
func (t *recentSubjects) contains(h uint64) bool {
	_, recent := t.recent[h]
	_, older := t.older[h]
	return recent || older
}

// add remembers a subject.
func (t *recentSubjects) add(h uint64) {
	delete(t.older, h)
	t.recent[h] = struct{}{}
	if len(t.recent) >= maxSubjectsPerToken/2 {
		t.recent, t.older = map[uint64]struct{}{}, t.recent
	}
}

// checkNewSubjects returns why the token of an org may not spend for so many new users, credentials, addresses and
// reservations. Those without a limit of their own do not count. The error is an answer.
func (s *Server) checkNewSubjects(ctx context.Context, policies *resolve.Plan, checks []Check) error {
	caller := callerOf(ctx)
	if s.newSubjects == nil || caller.Role != Tenant {
		return nil
	}
	named := map[subject]struct{}{}
	var r resolve.Resolution
	for i := range checks {
		c := &checks[i]
		if c.reserves() {
			named[subject{reservationKind, c.ReservationID}] = struct{}{}
		}
		if c.DryRun || c.User+c.Credential+c.IP == "" {
			continue
		}
		plan := policies.ForTenant(c.Org)
		id, err := identify(ctx, plan, c.admitRequest())
		if err != nil {
			return err
		}
		plan.ResolveAt(&id, s.now(), &r)
		for j := range r.Bounds {
			if key := &r.Bounds[j].Key; key.Kind != policy.WholeGroup {
				named[subject{key.Kind, key.Subject}] = struct{}{}
			}
		}
	}
	if len(named) == 0 {
		return nil
	}
	wait := s.newSubjects.admit(caller.budget(), named, limit.Micros(s.Now().UnixMicro()))
	if wait == 0 {
		return nil
	}
	s.metrics.limited.WithLabelValues(byNewSubjects).Inc()
	detail := fmt.Sprintf("this token names more new users, credentials, addresses and reservations than the %d a second "+
		"that are allowed (--new-subjects): nothing was decided", s.newSubjects.limit.Spec().Quantity)
	again := http.Header{"Retry-After": {strconv.FormatInt(wait.Seconds(), 10)}}
	return huma.ErrorWithHeaders(huma.NewError(http.StatusTooManyRequests, detail), again)
}
