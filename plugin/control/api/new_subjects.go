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
	maxSubjects          = 1 << 20        // remembered, of all tokens: about 40 MB
	maxSubjectTokens     = 10_000         // whose spending is remembered
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
// choose the names freely. It remembers hashes of the subjects of tokens, in bounded memory. It is safe for concurrent
// use.
type subjectLimiter struct {
	mu    sync.Mutex
	limit limit.Limit
	seed  maphash.Seed
	named recent[uint64, struct{}]
	spent recent[string, limit.State] // by token
}

// recent is a map of bounded size: entries that are not put again are dropped for newer ones.
type recent[K comparable, V any] struct {
	most       int // entries
	young, old map[K]V
}

func (r *recent[K, V]) get(key K) (value V, ok bool) {
	if value, ok = r.young[key]; !ok {
		value, ok = r.old[key]
	}
	return value, ok
}

func (r *recent[K, V]) put(key K, value V) {
	if r.young == nil || len(r.young) >= r.most/2 {
		r.young, r.old = map[K]V{}, r.young
	}
	r.young[key] = value
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
	n := &subjectLimiter{limit: l, seed: maphash.MakeSeed()}
	n.named.most, n.spent.most = maxSubjects, maxSubjectTokens
	return n, nil
}

// admit remembers the subjects and returns 0. If too many of them are new, it returns how long the token has to wait,
// and remembers none.
func (n *subjectLimiter) admit(token string, named map[subject]struct{}, now limit.Micros) limit.Micros {
	n.mu.Lock()
	defer n.mu.Unlock()
	spent, _ := n.spent.get(token)
	hashes, fresh := make([]uint64, 0, len(named)), int64(0)
	for s := range named {
		h := maphash.Comparable(n.seed, struct {
			token string
			subject
		}{token, s})
		hashes = append(hashes, h)
		if _, known := n.named.get(h); !known {
			fresh++
		}
	}
	n.limit.Advance(&spent, now)
	if wait := n.limit.Wait(&spent, now, fresh); wait > 0 {
		return wait
	}
	n.limit.Spend(&spent, now, fresh)
	n.spent.put(token, spent)
	for _, h := range hashes {
		n.named.put(h, struct{}{})
	}
	return 0
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
