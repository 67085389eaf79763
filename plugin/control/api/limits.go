package api

import (
	"cmp"
	"context"
	"fmt"
	"hash/maphash"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/response"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// Rates are the API's own limits, in requests a minute. They are limits like any other, decided by the same path.
type Rates struct {
	Requests  int64 // of one token; 0: 6000
	Decisions int64 // of one token to check or settle, instead of Requests; each check of a batch counts; 0: 600000
	Failures  int64 // of one address, without a valid token; 0: 60
	SignIns   int64 // of one token to the portal, apart from Requests; 0: 60

	// Subjects bounds how many new users, credentials, addresses and reservations the token of an org may spend for, a
	// second; 0: 100. The burst is ten seconds' worth, and at least as many as a batch can have. A subject is new if the
	// token has not named it recently.
	Subjects int64
}

const (
	limitsNamespace = "control"
	decisionPath    = "/v1/ratelimit/check"
	batchPath       = decisionPath + "/batch"
	settlePath      = "/v1/ratelimit/settle"
	maxChecks       = 100 // of a batch
	minute          = 60  // seconds
)

// decider returns what decides about requests to the API, with tokens as tenants and other requests as
// anonymous; nil without buckets.
func (r Rates) decider(buckets admit.Buckets) (*admit.Decider, error) {
	if buckets == nil {
		return nil, nil
	}
	perToken := func(endpoint string, most int64) schema.Limit {
		return schema.Limit{
			Name:       "requests",
			Scope:      policy.Tenant.String(),
			Endpoint:   endpoint,
			Limit:      most,
			WindowSize: minute,
		}
	}
	newSubjects := perToken("POST "+subjectsPath, r.subjects())
	newSubjects.WindowSize, newSubjects.Burst = 1, max(newSubjectsBurst*r.subjects(), leastNewSubjects)
	config := schema.Config{
		Namespace: limitsNamespace,
		Tiers: []schema.Tier{{Name: "token", Limits: []schema.Limit{
			perToken("", r.requests()),
			perToken("POST "+decisionPath, cmp.Or(r.Decisions, 600_000)),
			perToken("POST "+signInPath, cmp.Or(r.SignIns, 60)),
			newSubjects,
		}}},
		Anonymous: schema.Anonymous{Limits: []schema.Limit{
			{Name: "failures", Scope: policy.IP.String(), Limit: cmp.Or(r.Failures, 60), WindowSize: minute},
		}},
	}.WithDefaults()
	if err := config.Validate(); err != nil {
		return nil, fmt.Errorf("make the limits of the control plane: %w", err)
	}
	plan, err := resolve.ForCallers(config)
	if err != nil {
		return nil, fmt.Errorf("make the limits of the control plane: %w", err)
	}
	decider := &admit.Decider{Buckets: buckets, Renderer: response.New(config, nil)}
	decider.Policies.Store(plan)
	return decider, nil
}

// requests returns how many requests a minute one token may send.
func (r Rates) requests() int64 { return cmp.Or(r.Requests, 6000) }

// subjects returns how many new subjects a second one token may name.
func (r Rates) subjects() int64 { return cmp.Or(r.Subjects, 100) }

// ownWrites is how many writes a minute the token of an org may send. Each adds to the audit, so there are fewer than
// reads.
const ownWrites = 30

// costOf returns how many requests a request counts as: a write with the token of an org as its share of the minute's
// requests.
func (s *Server) costOf(caller Caller, needs access) int64 {
	if caller.Role == Tenant && needs == ownAccess {
		return max(s.Rates.requests()/ownWrites, 1)
	}
	return 1
}

// withinLimits spends a request from the limits of a token, or of an address if no token is valid, and reports whether
// it is admitted. If not, it has answered the request. The address is checked only after the lookup of the token, so
// that anonymous requests from behind the same proxy cannot block valid tokens. A batch spends as much as its checks
// one by one, or nothing.
func (s *Server) withinLimits(ctx huma.Context, token string, cost int64) bool {
	if s.limits == nil {
		return true
	}
	path := ctx.Operation().Path
	isBatch := path == batchPath
	if isBatch || path == settlePath {
		path = decisionPath
	}
	x := s.spend(ctx.Context(), token, ctx.RemoteAddr(), ctx.Method(), path, cost)
	for _, header := range x.Response.Headers {
		if !strings.EqualFold(header.Name, "Content-Type") {
			ctx.SetHeader(header.Name, string(header.Value))
		}
	}
	if !x.Response.Denied {
		return true
	}
	detail := "too many requests with this token"
	switch {
	case token == "":
		detail = "too many requests without a valid token from this address"
	case isBatch && x.Decision.RetryAfter == limit.Never:
		detail = fmt.Sprintf("a batch of %d exceeds what this token may check at once: send smaller ones", cost)
	case isBatch && cost > 1:
		detail = fmt.Sprintf("too many requests with this token for a batch of %d; nothing was decided", cost)
	}
	s.writeProblem(ctx, http.StatusTooManyRequests, detail)
	return false
}

// spend spends from the API's own limits of a token, or of an address if the token is "".
func (s *Server) spend(ctx context.Context, token, address, method, path string, cost int64) *admit.Exchange {
	var x admit.Exchange
	request := admit.CallerRequest{
		Caller: identity.Caller{Tenant: token, Cost: cost}, IP: clientAddress(address).String(),
		Method: method, Path: path,
	}
	if err := s.limits.Admit(ctx, &request, &x); err != nil {
		s.Log.Error("checking the API's own limits failed", "error", err)
	}
	return &x
}

const (
	newSubjectsBurst = 10             // seconds
	leastNewSubjects = 3 * maxChecks  // burst; any batch fits
	maxSubjects      = 1 << 20        // remembered, of all tokens: about 40 MB
	byNewSubjects    = "new_subjects" // label of limited_total
	subjectsPath     = "/subjects"    // that new subjects count by
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
	seed  maphash.Seed
	named recent[uint64]
}

// recent is a set of bounded size: entries that are not put again are dropped for newer ones.
type recent[K comparable] struct {
	most       int // entries
	young, old map[K]struct{}
}

func (r *recent[K]) has(key K) bool {
	_, isYoung := r.young[key]
	_, isOld := r.old[key]
	return isYoung || isOld
}

func (r *recent[K]) put(key K) {
	if r.young == nil || len(r.young) >= r.most/2 {
		r.young, r.old = map[K]struct{}{}, r.young
	}
	r.young[key] = struct{}{}
}

// admit remembers the subjects and returns 0. spend spends what the new ones cost; if it returns how long the token has
// to wait, admit returns that, and remembers none.
func (n *subjectLimiter) admit(
	token string, named map[subject]struct{}, spend func(fresh int64) limit.Micros,
) limit.Micros {
	n.mu.Lock()
	defer n.mu.Unlock()
	hashes, fresh := make([]uint64, 0, len(named)), int64(0)
	for s := range named {
		h := maphash.Comparable(n.seed, struct {
			token string
			subject
		}{token, s})
		hashes = append(hashes, h)
		if !n.named.has(h) {
			fresh++
		}
	}
	if fresh > 0 {
		if wait := spend(fresh); wait > 0 {
			return wait
		}
	}
	for _, h := range hashes {
		n.named.put(h)
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
	wait := s.newSubjects.admit(caller.budget(), named, func(fresh int64) limit.Micros {
		return s.spend(ctx, caller.budget(), "", http.MethodPost, subjectsPath, fresh).Decision.RetryAfter
	})
	if wait == 0 {
		return nil
	}
	s.metrics.limited.WithLabelValues(byNewSubjects).Inc()
	detail := fmt.Sprintf("this token names more new users, credentials, addresses and reservations than the %d a second "+
		"that are allowed (--new-subjects): nothing was decided", s.Rates.subjects())
	again := http.Header{"Retry-After": {strconv.FormatInt(wait.Seconds(), 10)}}
	return huma.ErrorWithHeaders(huma.NewError(http.StatusTooManyRequests, detail), again)
}
