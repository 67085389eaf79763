package api_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/reservation"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

func TestFaultyReservationsAndSettlementsAreListedWithTheirPaths(t *testing.T) {
	t.Parallel()
	r := reservingChats(t)
	r.reserves(admin, "acme", "chat-1", 10)
	long := strings.Repeat("x", 129)
	for body, want := range map[string]string{
		`"reserve":-1,"reservation_id":"a"`:                        "body.reserve",
		`"reserve":1.5,"reservation_id":"a"`:                       "body.reserve",
		`"reserve":1e3,"reservation_id":"a"`:                       "body.reserve",
		`"reserve":1e300,"reservation_id":"a"`:                     "body.reserve",
		`"reserve":1000000000001,"reservation_id":"a"`:             "body.reserve",
		`"reserve":99999999999999999999,"reservation_id":"a"`:      "body.reserve",
		`"reserve":0,"reservation_id":"a"`:                         "body.reserve",
		`"reserve":"5","reservation_id":"a"`:                       "body.reserve",
		`"reserve":null,"reservation_id":"a"`:                      "body.reserve",
		`"reserve":[5],"reservation_id":"a"`:                       "body.reserve",
		`"reserve":5`:                                              "body.reservation_id",
		`"reserve":5,"reservation_id":""`:                          "body.reservation_id",
		`"reserve":5,"reservation_id":7`:                           "body.reservation_id",
		`"reserve":5,"reservation_id":"a b"`:                       "body.reservation_id",
		`"reserve":5,"reservation_id":"a\u0000"`:                   "body.reservation_id",
		`"reserve":5,"reservation_id":"a\nb"`:                      "body.reservation_id",
		`"reserve":5,"reservation_id":"ü"`:                         "body.reservation_id",
		`"reserve":5,"reservation_id":"` + long + `"`:              "body.reservation_id",
		`"reserve":5,"reservation_id":"a","reserve_timeout":0`:     "body.reserve_timeout",
		`"reserve":5,"reservation_id":"a","reserve_timeout":86401`: "body.reserve_timeout",
		`"reservation_id":"a"`:                                     "body.reserve",
		`"reserve_timeout":5`:                                      "body.reserve",
		`"reserve":-1,"reservation_id":" ","reserve_timeout":-5,"until":1`: "body.reservation_id body.reserve " +
			"body.reserve_timeout body.until",
	} {
		r.wantFaults(r.as("POST", checkPath, `{"org_id":"acme",`+body+`}`), want)
	}
	for body, want := range map[string]string{
		`{}`:                                            "body.actual body.id",
		`{"id":"chat-1"}`:                               "body.actual",
		`{"actual":5}`:                                  "body.id",
		`{"id":"","actual":5}`:                          "body.id",
		`{"id":"a\u0007","actual":5}`:                   "body.id",
		`{"id":"` + long + `","actual":5}`:              "body.id",
		`{"id":["chat-1"],"actual":5}`:                  "body.id",
		`{"id":"chat-1","actual":-1}`:                   "body.actual",
		`{"id":"chat-1","actual":-0.5}`:                 "body.actual",
		`{"id":"chat-1","actual":0.5}`:                  "body.actual",
		`{"id":"chat-1","actual":1e300}`:                "body.actual",
		`{"id":"chat-1","actual":1000000000001}`:        "body.actual",
		`{"id":"chat-1","actual":9223372036854775808}`:  "body.actual",
		`{"id":"chat-1","actual":"5"}`:                  "body.actual",
		`{"id":"chat-1","actual":null}`:                 "body.actual",
		`{"id":"chat-1","actual":true}`:                 "body.actual",
		`{"id":"chat-1","actual":5,"org_id":7}`:         "body.org_id",
		`{"id":"chat-1","actual":5,"org_id":"a\u0000"}`: "body.org_id",
		`{"id":"chat-1","actual":5,"tokens":5}`:         "body.tokens",
	} {
		r.wantFaults(r.as("POST", "/v1/ratelimit/settle", body), want)
	}
	for _, body := range []string{`{"id":"chat-1","actual":NaN}`, `{"id":"chat-1","actual":5,"actual":6}`, `{"id":`} {
		r.want(r.as("POST", "/v1/ratelimit/settle", body), http.StatusBadRequest)
	}
	const batch = `{"checks":[{"org_id":"acme"},{"org_id":"acme","reserve":5,"reservation_id":"a"}]}`
	a := r.want(r.as("POST", batchPath, batch), http.StatusUnprocessableEntity)
	if got := read[problem](r.world, a); got.paths() != "body.checks[1].reserve" ||
		!strings.Contains(got.Errors[0].Message, checkPath) {
		t.Errorf("a batch with a reservation: %s", a.Body)
	}
	r.wantUsed("after faulty requests", 10, 10, 1)
}

// slowBuckets wait in a take until they may go on.
type slowBuckets struct {
	admit.Buckets
	entered, goOn chan struct{}
}

func (s slowBuckets) Take(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error {
	s.entered <- struct{}{}
	<-s.goOn
	return s.Buckets.Take(ctx, bounds, statuses)
}

func init() {
	scenarios["check"] = func(c *contract, o operation) {
		c.check(o, c.do(o.call(viewer)))
		r := reservingChats(c.T)
		hasty := r.replica(func(o *ledgerOptions) { o.Patience = 1 })
		slow := slowBuckets{r.store, make(chan struct{}), make(chan struct{})}
		r.decider.Buckets = slow
		reserve := call{admin, "POST", checkPath, `{"org_id":"acme","reserve":5,"reservation_id":"chat-1"}`, nil}
		var both sync.WaitGroup
		both.Go(func() { c.check(o, r.do(reserve)) })
		<-slow.entered
		conflict := hasty.do(reserve)
		c.check(o, conflict)
		if conflict.Code != http.StatusConflict || conflict.Header().Get("Retry-After") != "1" {
			c.Errorf("while the first is decided: %d %s", conflict.Code, conflict.Body)
		}
		both.Go(func() {
			if a := r.do(reserve); a.Header().Get("Idempotent-Replayed") != "true" {
				c.Errorf("the second is answered by %d %s, want the answer of the first", a.Code, a.Body)
			}
		})
		slow.goOn <- struct{}{}
		both.Wait()
		if got := r.settles(admin, "chat-1", 5); got.Outcome != "settled" {
			c.Errorf("%+v", got)
		}
	}
}

func TestAClientThatDisconnectsLeavesAReservationThatCanBeSettled(t *testing.T) {
	t.Parallel()
	r := reservingChats(t)
	slow := slowBuckets{r.store, make(chan struct{}), make(chan struct{})}
	r.decider.Buckets = detached{slow}
	reserve := call{admin, "POST", checkPath, `{"org_id":"acme","reserve":500,"reservation_id":"chat-1"}`, nil}
	ctx, disconnect := context.WithCancel(t.Context())
	var answered sync.WaitGroup
	answered.Go(func() { r.server.ServeHTTP(httptest.NewRecorder(), reserve.request().WithContext(ctx)) })
	<-slow.entered
	disconnect()
	slow.goOn <- struct{}{}
	answered.Wait()
	r.decider.Buckets = r.store
	if a := r.do(reserve); a.Header().Get("Idempotent-Replayed") != "true" {
		t.Errorf("the retry is answered by %d %s", a.Code, a.Body)
	}
	r.settles(admin, "chat-1", 20)
	r.wantUsed("afterwards", 20, 20, 1)
}

// detached takes although the client has disconnected, as when that happens after the call to Redis.
type detached struct{ admit.Buckets }

func (d detached) Take(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error {
	return d.Buckets.Take(context.WithoutCancel(ctx), bounds, statuses)
}

func TestWithoutRecordsNothingIsChargedAndTheAnswerSaysWhatIsCertain(t *testing.T) {
	t.Parallel()
	var fails atomic.Pointer[string]
	failing := func(operations string) { fails.Store(&operations) }
	failing("")
	r := reservingChats(t)
	whole := r.records
	r.records = brokenRecords{whole, func(operation string) bool { return strings.Contains(*fails.Load(), operation) }}
	r.world = r.replica()
	const body = `{"org_id":"acme","reserve":500,"reservation_id":"chat-1"}`

	failing("add get swap take")
	a := r.as("POST", checkPath, body)
	r.wantProblem(a, http.StatusServiceUnavailable, "nothing was charged; retry with the same id")
	if a.Header().Get("Retry-After") != "1" || strings.Contains(a.Body.String(), "hunter2") {
		t.Errorf("%v %s", a.Header(), a.Body)
	}
	failing("")
	r.wantUsed("after the records failed", 0, 0, 0)
	r.checks(admin, body)

	failing("swap get")
	r.wantProblem(r.settle(admin, "chat-1", 20), http.StatusServiceUnavailable, "nothing was settled")
	failing("")
	r.wantUsed("after a settlement that was not made", 500, 500, 1)
	r.settles(admin, "chat-1", 20)
	r.wantUsed("after it was sent again", 20, 20, 1)

	failing("swap") // and add and get work: the process dies between the take and the record, as far as others see
	const second = `{"org_id":"acme","reserve":500,"reservation_id":"chat-2"}`
	r.wantProblem(r.as("POST", checkPath, second), http.StatusServiceUnavailable, "stays charged, and cannot be settled")
	failing("")
	r.passed.Store(int64(31 * time.Second))
	for range 2 {
		r.wantProblem(r.as("POST", checkPath, second), http.StatusConflict, "choose a new id")
		r.wantProblem(r.settle(admin, "chat-2", 20), http.StatusConflict, "unknown whether it reserved")
	}
	r.wantUsed("after the id was tried again", 520, 520, 2)
}

// crashing settles once, and fails to record it.
type crashing struct {
	reservation.Buckets
	settled func()
}

func (c crashing) Settle(ctx context.Context, b []policy.Bound, s []decision.Status, actual []int64) error {
	defer c.settled()
	return c.Buckets.Settle(ctx, b, s, actual)
}

func TestASettlementThatWasNotRecordedIsNotMadeTwice(t *testing.T) {
	t.Parallel()
	var down atomic.Bool
	r := reservingChats(t)
	r.records = brokenRecords{r.records, func(operation string) bool { return down.Load() && operation != "get" }}
	r.world = r.replica(func(o *ledgerOptions) { o.buckets = crashing{r.store, func() { down.Store(true) }} })
	r.reserves(admin, "acme", "chat-1", 500)
	if got := r.settles(admin, "chat-1", 20); got.Limits[0].Refunded != 480 {
		t.Errorf("%+v", got)
	}
	down.Store(false)
	hasty := r.replica(func(o *ledgerOptions) { o.Patience = 1 })
	again := call{admin, "POST", "/v1/ratelimit/settle", `{"id":"chat-1","actual":20}`, nil}
	hasty.wantProblem(hasty.do(again), http.StatusConflict, "still in progress")
	r.passed.Store(int64(31 * time.Second))
	for range 2 {
		a := r.want(r.do(again), http.StatusOK)
		if got := read[api.Settled](r.world, a); got.Outcome != "unknown" || len(got.Limits) != 0 ||
			a.Header().Get("Idempotent-Replayed") != "true" {
			t.Errorf("%s", a.Body)
		}
	}
	r.wantProblem(r.settle(admin, "chat-1", 21), http.StatusConflict, "settled to 20 tokens")
	r.wantUsed("afterwards", 20, 20, 1)
}
