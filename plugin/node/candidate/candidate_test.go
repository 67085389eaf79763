package candidate_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/leaktest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/memory"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/response"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/node/candidate"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func now() limit.Micros { return 1_700_000_000 * limit.Second }

// daily returns a policy of tier free.
func daily(name string, quantity int64) schema.Policy {
	return schema.Policy{Tier: "free", Limit: schema.Limit{
		Name: name, Scope: "tenant", Limit: quantity, WindowSize: 86400, Algorithm: "fixed_window",
	}}
}

// trial is a decider whose active limits are a: 3 and b: 10, and a candidate beside it that is a: 5, b: deleted, c: 2.
type trial struct {
	*admit.Decider
	evaluator *candidate.Evaluator
	view      *candidate.View
	tried     *store
	active    *memory.Store
	x         admit.Exchange
}

// store counts its takes, and fails if err is set.
type store struct {
	candidate.Store
	mu       sync.Mutex
	keys     []policy.Key
	err      error
	released int
}

func (s *store) Take(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range bounds {
		s.keys = append(s.keys, bounds[i].Key)
	}
	if s.err != nil {
		return s.err
	}
	return s.Store.Take(ctx, bounds, statuses)
}

func newTrial(t *testing.T, o candidate.Options, assigned ...string) *trial {
	t.Helper()
	config := schema.Config{Tiers: []schema.Tier{{Name: "free"}}, Strategy: schema.StrategyLocal}.WithDefaults()
	plan, err := resolve.FromConfig(config)
	require.NoError(t, err)
	snapshot, faults := policy.NewSnapshot(policy.Rows{Version: 1, Policies: []policy.PolicyRow{
		{ID: 1, Policy: daily("a", 3)}, {ID: 2, Policy: daily("b", 10)},
	}}, nil)
	rows := []policy.CandidateRow{
		{Policy: daily("a", 5)}, {Policy: daily("b", 0), Deleted: true}, {Policy: daily("c", 2)},
	}
	both, more := snapshot.WithCandidate(&policy.CandidateSet{Name: "spring", Tenants: assigned, Rows: rows})
	if len(faults)+len(more) > 0 {
		t.Fatal(faults, more)
	}
	r := &trial{
		evaluator: candidate.New(o), active: memory.New(memory.Options{Now: now}),
		tried: &store{Store: memory.New(memory.Options{Now: now})},
	}
	r.view = r.evaluator.View(func() (candidate.Buckets, error) {
		return candidate.Buckets{Buckets: r.tried, Release: func() { r.tried.released++ }}, nil
	})
	r.Decider = &admit.Decider{Now: now, Buckets: r.active, Renderer: response.New(config, nil), Candidates: r.view}
	r.Policies.Store(plan.With(both))
	return r
}

// run runs the evaluator until the end of the test.
func (r *trial) run(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- r.evaluator.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		assert.NoError(t, <-ended)
	})
}

// send sends requests of a tenant, and returns how many are admitted.
func (r *trial) send(t *testing.T, tenant string, n int) (admitted int) {
	t.Helper()
	for range n {
		request := &facts{tenant: tenant, method: "GET", path: "/x/7"}
		require.NoError(t, r.Admit(context.Background(), request, &r.x))
		if !r.x.Response.Denied {
			admitted++
		}
	}
	return admitted
}

// until waits until the numbers are so.
func (r *trial) until(t *testing.T, what string, so func(candidate.Stats) bool) {
	t.Helper()
	await.NoError(t, what, func() error {
		if s := r.evaluator.Stats(); !so(s) {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
}

// sink keeps what is reported, unless it fails.
type sink struct {
	mu      sync.Mutex
	batches []string
	seqs    []int64
	fails   int
	err     error
}

func (s *sink) Report(_ context.Context, _, name string, seq int64, _ time.Duration, rows []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fails > 0 {
		s.fails--
		return s.err
	}
	s.batches, s.seqs = append(s.batches, name+" "+string(rows)), append(s.seqs, seq)
	return nil
}

func TestWhatACandidateWouldChangeIsCountedByTenantEndpointAndPolicy(t *testing.T) {
	r := newTrial(t, candidate.Options{Workers: 1})
	r.run(t)
	if got := r.send(t, "zen", 6); got != 3 {
		t.Errorf("%d requests are admitted, want the 3 of the active limit", got)
	}
	r.until(t, "all are tried", func(s candidate.Stats) bool { return s.Candidate.Admitted+s.Candidate.Denied == 6 })
	if s := r.evaluator.Stats(); s.Active != (candidate.Results{Admitted: 3, Denied: 3}) ||
		s.Candidate != (candidate.Results{Admitted: 2, Denied: 4}) {
		t.Errorf("the results are %+v", s)
	}
	reported := report(t, r.evaluator, &sink{}, nil)
	for _, want := range []string{
		`{"tenant":"zen","endpoint":"","policy":"","requests":6,"active_only":0,"candidate_only":1,"both":3,"examples":[`,
		`"denied_by":"candidate","active":"","candidate":"c: 2 per 86400 s (fixed_window) per tenant"}`,
		`{"tenant":"zen","endpoint":"","policy":"a","requests":6,"active_only":3,"candidate_only":0,"both":0,"examples":[`,
		`{"tenant":"zen","endpoint":"","policy":"b","requests":6,"active_only":0,"candidate_only":0,"both":0}`,
		`{"tenant":"zen","endpoint":"","policy":"c","requests":6,"active_only":0,"candidate_only":4,"both":0,"examples":[`,
	} {
		assert.True(t, strings.Contains(reported, want), "the report lacks %s in\n%s", want, reported)
	}
	for _, key := range r.tried.keys {
		assert.Equal(t, "default+spring", key.Namespace, "a request is tried in the bucket %+v", key)
	}
}

// report runs a reporter until it has stored a batch, or until is closed, and returns what was stored.
func report(t *testing.T, e *candidate.Evaluator, to *sink, log *slog.Logger) string {
	t.Helper()
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	reporter := candidate.NewReporter(candidate.ReporterOptions{
		Counter: e.Counter(), Sink: to, Source: "n1", Log: log, Every: time.Millisecond,
	})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- reporter.Run(ctx) }()
	await.That(t, "a batch is stored or lost", func() bool {
		to.mu.Lock()
		defer to.mu.Unlock()
		return len(to.batches) > 0 || reporter.Lost() > 0
	})
	cancel()
	require.NoError(t, <-ended)
	return strings.Join(to.batches, "\n")
}

func TestAnAssignedTenantHasTheCandidatesLimitsOnTheActiveBuckets(t *testing.T) {
	r := newTrial(t, candidate.Options{})
	r.run(t)
	require.Equal(t, 1, r.send(t, "acme", 1), "the first request is denied")
	assigned := newTrial(t, candidate.Options{}, "acme")
	r.Policies.Store(assigned.Policies.Load())
	if got := r.send(t, "acme", 9); got != 2 {
		t.Errorf("%d requests of acme are admitted, want 2: c allows 2 in a new bucket, a 5 less the one before", got)
	}
	if bound := r.x.Decision.Resolution.Bounds[r.x.Decision.Binding]; bound.Key.Namespace != "default" ||
		bound.Policy.Name != "c" {
		t.Errorf("acme is bound by %+v", bound)
	}
	if s := r.evaluator.Stats(); s.Enforced != (candidate.Results{Admitted: 2, Denied: 7}) {
		t.Errorf("the candidate was enforced for %+v", s.Enforced)
	}
	assert.Equal(t, 3, r.send(t, "zen", 9), "requests of zen are admitted")
}

func TestAFullQueueDropsRequestsAndHoldsNoneBack(t *testing.T) {
	r := newTrial(t, candidate.Options{MaxWaiting: 2})
	assert.Equal(t, 3, r.send(t, "zen", 9), "requests are admitted")
	if s := r.evaluator.Stats(); s.Waiting != 2 || s.Dropped[candidate.QueueFull] != 7 {
		t.Errorf("%+v, want 2 waiting and 7 dropped", s)
	}
}

func TestARequestWhoseStoreFailsIsDroppedAndCounted(t *testing.T) {
	r := newTrial(t, candidate.Options{})
	r.tried.err = errors.New("gone")
	r.run(t)
	assert.Equal(t, 3, r.send(t, "zen", 4), "requests are admitted")
	r.until(t, "all are dropped", func(s candidate.Stats) bool { return s.Dropped[candidate.NoStore] == 4 })
	if s := r.evaluator.Stats(); s.Active != (candidate.Results{}) {
		t.Errorf("a request without an answer is compared: %+v", s)
	}
}

func TestAPanicInATrialEndsThatTrialAlone(t *testing.T) {
	r := newTrial(t, candidate.Options{})
	r.tried.Store = nil
	r.run(t)
	r.send(t, "zen", 2)
	r.until(t, "both have panicked", func(s candidate.Stats) bool { return s.Dropped[candidate.Panicked] == 2 })
}

func TestRowsBeyondTheMostAreDroppedAndCounted(t *testing.T) {
	r := newTrial(t, candidate.Options{MaxRows: 4})
	r.run(t)
	r.send(t, "zen", 1)
	r.send(t, "acme", 1)
	r.until(t, "a request is counted in part", func(s candidate.Stats) bool { return s.Dropped[candidate.NoRow] == 1 })
}

func TestTheBucketsOfACandidateAreOpenedForTheFirstTrialAndReleasedOnce(t *testing.T) {
	r := newTrial(t, candidate.Options{Workers: 1})
	r.run(t)
	r.view.Release(false)
	r.send(t, "zen", 1)
	r.until(t, "it is tried", func(s candidate.Stats) bool { return s.Candidate.Admitted == 1 })
	r.view.Release(false)
	r.view.Release(true)
	r.send(t, "zen", 1)
	r.until(t, "the next one finds it closed", func(s candidate.Stats) bool { return s.Dropped[candidate.NoStore] == 1 })
	assert.Equal(t, 1, r.tried.released, "the buckets are released %d times, want once", r.tried.released)
}

// rejection is an error of a batch that will never be stored.
type rejection struct{ error }

func (rejection) Rejects() bool { return true }

func TestABatchIsSentAgainUnderItsNumberUnlessItIsRejected(t *testing.T) {
	for _, rejected := range []bool{false, true} {
		r := newTrial(t, candidate.Options{})
		r.run(t)
		r.send(t, "zen", 1)
		r.until(t, "it is tried", func(s candidate.Stats) bool { return s.Candidate.Admitted == 1 })
		to := &sink{fails: 1, err: errors.New("no answer")}
		if rejected {
			to.err = rejection{to.err}
		}
		var log strings.Builder
		reported := report(t, r.evaluator, to, slog.New(slog.NewTextHandler(&log, nil)))
		if (reported == "") != rejected || !rejected && !slices.Equal(to.seqs, []int64{1}) {
			t.Errorf("rejected %v: batches %v hold %q", rejected, to.seqs, reported)
		}
		if strings.Count(log.String(), "level=WARN") != 1 {
			t.Errorf("rejected %v: the log is %s", rejected, log.String())
		}
	}
}

func TestAnAssignedTenantKeepsWhatItHasSpentUnderAnotherAlgorithmAndWindow(t *testing.T) {
	for algorithm, back := range map[string]int{
		"token_bucket": 0, "sliding_window": 0, "sliding_log": 0,
		"fixed_window": 3, // its window began before the shorter one, which is empty
	} {
		month := daily("a", 5)
		month.WindowSize, month.Algorithm = 30*86400, algorithm
		r := newTrial(t, candidate.Options{})
		r.Candidates = nil
		active := r.Policies.Load()
		snapshot, _ := policy.NewSnapshot(policy.Rows{Version: 1, Policies: []policy.PolicyRow{
			{ID: 1, Policy: daily("a", 3)}, {ID: 2, Policy: daily("b", 10)},
		}}, nil)
		both, faults := snapshot.WithCandidate(&policy.CandidateSet{
			Name: "spring", Tenants: []string{"acme"}, Rows: []policy.CandidateRow{{Policy: month}},
		})
		if len(faults) > 0 {
			t.Fatal(faults)
		}
		if got := r.send(t, "acme", 2); got != 2 {
			t.Fatalf("%d of 2 requests are admitted", got)
		}
		r.Policies.Store(active.With(both))
		if got := r.send(t, "acme", 9); got != 3 {
			t.Errorf("%s: once it is assigned, %d more of 5 are admitted, want 3", algorithm, got)
		}
		r.Policies.Store(active)
		if got := r.send(t, "acme", 9); got != back {
			t.Errorf("%s: once it is not assigned any more, %d more of 3 are admitted, want %d", algorithm, got, back)
		}
	}
}

func TestAPathThatTriesNoCandidatesEnforcesThem(t *testing.T) {
	r := newTrial(t, candidate.Options{}, "acme")
	r.Candidates = nil // as in a dry run
	if acme, zen := r.send(t, "acme", 9), r.send(t, "zen", 9); acme != 2 || zen != 3 {
		t.Errorf("%d requests of acme and %d of zen are admitted, want 2 of the candidate and 3", acme, zen)
	}
	if plan := r.Policies.Load(); plan.ForTenant("acme") != plan.Candidate().Plan || plan.ForTenant("zen") != plan {
		t.Error("the plan of acme is not the candidate's, or that of zen is")
	}
}
