package api_test

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/memory"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/redis"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/reservation"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

func TestAnOrgsTokenSettlesNotBelowItsReservation(t *testing.T) {
	t.Parallel()
	r := reservingChats(t)
	got := r.reserves(ofAcme, "acme", "chat-1", 1500)
	if !got.Allowed || len(got.Reservation.Policies) != 1 || got.Reservation.Policies[0] != "llm-tokens" {
		t.Fatalf("%+v, %+v", got, got.Reservation)
	}
	r.wantUsed("after a reservation, of which one counts for all", 1500, 1, 1)
	for _, less := range []int{0, 1499} {
		r.wantProblem(r.settle(ofAcme, "chat-1", less), http.StatusForbidden, "at least 1500")
	}
	r.wantUsed("after it would have settled to less", 1500, 1, 1)
	if settled := r.settles(ofAcme, "chat-1", 1700); len(settled.Limits) != 1 || settled.Limits[0].Charged != 200 {
		t.Errorf("%+v", settled)
	}
	r.wantUsed("after it settled to more, which is not charged to all", 1700, 1, 1)
	r.reserves(ofAcme, "acme", "chat-2", 1)
	r.settles(ofAcme, "chat-2", 1_000_000)
	r.wantUsed("after it overspent its own budget", 1_001_700, 2, 2)
}

func TestAnIdOfAnotherOrgIsAsUnknownAsAnyOther(t *testing.T) {
	t.Parallel()
	r := reservingChats(t)
	r.reserves(ofAcme, "acme", "by-acme", 1500)
	r.reserves(admin, "acme", "by-admin", 1500)
	r.settles(admin, "by-admin", 1500)
	unknown := r.want(r.settle(ofGlobex, "never-made", 5000), http.StatusNotFound).Body.String()
	for _, test := range []struct{ token, body string }{
		{ofGlobex, `{"id":"by-acme","actual":5000}`},
		{ofGlobex, `{"id":"by-acme","actual":0}`},
		{ofGlobex, `{"id":"by-acme","actual":5000,"org_id":"globex"}`},
		{ofGlobex, `{"id":"by-admin","actual":5000}`},
		{ofAcme, `{"id":"by-admin","actual":5000}`},
		{admin, `{"id":"by-acme","actual":5000}`},
		{admin, `{"id":"by-acme","actual":5000,"org_id":"globex"}`},
		{admin, `{"id":"by-admin","actual":1500,"org_id":"globex"}`},
	} {
		a := r.want(r.do(call{test.token, "POST", "/v1/ratelimit/settle", test.body, nil}), http.StatusNotFound)
		if a.Body.String() != unknown {
			t.Errorf("%s %s: %s, want what an unknown id gets: %s", test.token, test.body, a.Body, unknown)
		}
	}
	if got := r.reserves(ofGlobex, "globex", "by-acme", 700); !got.Allowed || got.Reservation.Tokens != 700 {
		t.Errorf("%+v: want each org to have ids of its own", got)
	}
	r.wantUsed("before acme's is settled", 3000, 1502, 2)
	other := call{ofAcme, "POST", "/v1/ratelimit/settle", `{"id":"by-acme","actual":5000,"org_id":"globex"}`, nil}
	r.wantProblem(r.do(other), http.StatusForbidden, "its own org only")
	viewing := call{viewer, "POST", "/v1/ratelimit/settle", `{"id":"by-acme","actual":5000}`, nil}
	r.wantProblem(r.do(viewing), http.StatusForbidden, "a viewer settles nothing")

	// An operator settles what an org's token has reserved, also to less, if it names the org: its own reservation of
	// that id comes after it.
	r.reserves(admin, "acme", "by-acme", 1)
	a := r.want(r.as("POST", "/v1/ratelimit/settle", `{"id":"by-acme","actual":20,"org_id":"acme"}`), http.StatusOK)
	if settled := read[api.Settled](r.world, a); settled.Limits[0].Refunded != 1480 {
		t.Errorf("%+v", settled)
	}
	r.wantUsed("afterwards", 1521, 1503, 3)
}

func TestAnOrgsTokenReservesNoLongerThanItsLimits(t *testing.T) {
	t.Parallel()
	r := reservingChats(t)
	const body = `{"org_id":"acme","reserve":5,"reservation_id":"chat-1","reserve_timeout":`
	longer := call{ofAcme, "POST", checkPath, body + "61}", nil}
	r.wantProblem(r.do(longer), http.StatusForbidden, "at most 60")
	r.wantUsed("after that", 0, 0, 0)
	if got := r.checks(ofAcme, body+"60}"); !got.Allowed {
		t.Errorf("%+v", got)
	}
	if got := r.checks(admin, body+"86400}"); !got.Allowed {
		t.Errorf("%+v", got)
	}
	for _, denied := range []call{
		{ofAcme, "POST", checkPath, strings.Replace(body, "acme", "globex", 1) + "5}", nil},
		{viewer, "POST", checkPath, body + "5}", nil},
	} {
		r.want(r.do(denied), http.StatusForbidden)
	}
}

func TestNewReservationsOfAnOrgsTokenAreLimitedAndRepetitionsAreNot(t *testing.T) {
	t.Parallel()
	r := reservingChats(t)
	own := memory.New(memory.Options{Now: clock})
	w := open(t, func(o *api.Options) {
		o.Decider, o.Buckets, o.Limits, o.Rates = r.decider, r.store, own, api.Rates{Subjects: 1}
		_, o.Reservations = ledgerOf(r.records, r.store)
	})
	send := func(id int) answer {
		body := fmt.Sprintf(`{"org_id":"acme","reserve":1,"reservation_id":"chat-%d"}`, id)
		return w.do(call{ofAcme, "POST", checkPath, body, nil})
	}
	sent := 0
	for sent < 400 && send(sent).Code == http.StatusOK {
		sent++
	}
	if sent < 300 || sent > 330 { // more come in each second
		t.Errorf("%d were allowed until one was denied, want the burst of 300", sent)
	}
	w.want(send(sent+1), http.StatusTooManyRequests)
	if a := w.want(send(3), http.StatusOK); a.Header().Get("Idempotent-Replayed") != "true" {
		t.Errorf("a repetition is answered by %s", a.Body)
	}
}

func TestReservationsOfBucketsInThisProcessGetBackWhatWasTooMuch(t *testing.T) {
	t.Parallel()
	buckets := shelf{memory.New(memory.Options{Now: clock})}
	r := &reserving{planned: &planned{}}
	r.world = open(t, func(o *api.Options) {
		o.Decider, o.Buckets = deciderOf(t, chats(), buckets, policy.Rows{}), buckets
		_, o.Reservations = ledgerOf(nil, buckets)
	})
	r.wantSettled()
}

func TestReservationsInAClusterAreSettledOnEveryMaster(t *testing.T) {
	t.Parallel()
	nodes := redistest.Cluster(t, 3, 0)
	block := schema.Redis{ConnectTimeout: 5000, SendTimeout: 5000, ReadTimeout: 5000}
	for _, server := range nodes.All() {
		block.ClusterNodes = append(block.ClusterNodes, schema.RedisClusterNode{IP: server.Host, Port: int64(server.Port)})
	}
	store, closeRedis, err := redis.NewRegistry(slog.New(slog.DiscardHandler), nil).Open(block)
	require.NoError(t, err)
	defer closeRedis()
	r := &reserving{planned: &planned{}}
	r.world = open(t, func(o *api.Options) {
		o.Decider, o.Buckets = deciderOf(t, chats(), store, policy.Rows{}), store
		_, o.Reservations = ledgerOf(store.Records("default"), store)
	})
	r.wantSettled()
}

// wantSettled fails unless acme's reservations are settled, once each.
func (r *reserving) wantSettled() {
	r.Helper()
	for range 2 {
		r.reserves(admin, "acme", "less", 1500)
		r.reserves(admin, "acme", "more", 1500)
		if got := r.settles(admin, "less", 420); got.Limits[0].Refunded != 1080 || got.Limits[1].Refunded != 1080 {
			r.Errorf("%+v", got)
		}
		if got := r.settles(admin, "more", 1700); got.Limits[0].Charged != 200 || got.Limits[1].Charged != 200 {
			r.Errorf("%+v", got)
		}
		r.wantUsed("afterwards", 2120, 2120, 2)
	}
}

// repeats sends a call again and again, to either server, and returns the answers. A conflict with the same call in
// progress is not an answer.
func repeats(random *rand.Rand, servers []*world, c call) (answers []answer) {
	for wanted := 1 + random.IntN(3); len(answers) < wanted; {
		a := servers[random.IntN(len(servers))].do(c)
		if a.Code != http.StatusConflict || a.Header().Get("Retry-After") == "" {
			answers = append(answers, a)
		}
	}
	return answers
}

// answersOf collects the answers to one call, from all who sent it.
type answersOf struct {
	mu     sync.Mutex
	first  int             // that are no repetition
	bodies map[string]bool // different ones
}

func (o *answersOf) add(t *testing.T, answers []answer) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, a := range answers {
		if a.Code != http.StatusOK {
			t.Errorf("%s: %d %s", a.call.body, a.Code, a.Body)
		}
		o.bodies[a.Body.String()] = true
		if a.Header().Get("Idempotent-Replayed") == "" {
			o.first++
		}
	}
}

// In one window all that is settled is, in sum, what was really used, however often and wherever it is sent.
func TestWhatIsChargedIsWhatDistinctReservationsUsed(t *testing.T) {
	t.Parallel()
	const callers, ids, perCaller = 64, 240, 15 // each id is of four callers
	r := reservingChats(t)
	config := chats()
	config.Tiers[0].Limits = config.Tiers[0].Limits[:1]
	for _, l := range []*int64{&config.Tiers[0].Limits[0].Limit, &config.Global.Limits[0].Limit} {
		*l = 1_000_000_000
	}
	ruled(t, r.decider, config, policy.Rows{})
	servers := []*world{r.world, r.replica()}
	var checks, settlements [ids]answersOf
	reserved, actual := [ids]int64{}, [ids]int64{}
	var wantReserved, wantActual int64
	seeds := rand.New(rand.NewPCG(1, 2))
	for i := range ids {
		checks[i].bodies, settlements[i].bodies = map[string]bool{}, map[string]bool{}
		reserved[i], actual[i] = seeds.Int64N(2000), seeds.Int64N(3000)
		wantReserved, wantActual = wantReserved+reserved[i], wantActual+actual[i]
	}
	var all sync.WaitGroup
	for caller := range callers {
		random := rand.New(rand.NewPCG(3, uint64(caller)))
		all.Go(func() {
			for n := range perCaller {
				i := (caller/4*perCaller + n) % ids
				checks[i].add(t, repeats(random, servers, call{
					admin, "POST", checkPath,
					fmt.Sprintf(`{"org_id":"acme","reserve":%d,"reservation_id":"chat-%d"}`, reserved[i], i), nil,
				}))
				settlements[i].add(t, repeats(random, servers, call{
					admin, "POST", "/v1/ratelimit/settle",
					fmt.Sprintf(`{"id":"chat-%d","actual":%d}`, i, actual[i]), nil,
				}))
			}
		})
	}
	all.Wait()
	for i := range ids {
		for what, got := range map[string]*answersOf{"check": &checks[i], "settlement": &settlements[i]} {
			if got.first != 1 || len(got.bodies) != 1 {
				t.Errorf("the %s of id %d was made %d times, and has %d different answers", what, i, got.first,
					len(got.bodies))
			}
		}
	}
	r.wantUsed("afterwards", wantActual, wantActual, 0)
	s := &r.settled // of two limits
	if s.reserved.Load() != 2*wantReserved || s.actual.Load() != 2*wantActual ||
		s.change.Load() != 2*(wantActual-wantReserved) || s.outcomes[reservation.Measured].Load() != 2*ids {
		t.Errorf("observed: %d reserved, %d used, a change of %d, %d measured", s.reserved.Load(), s.actual.Load(),
			s.change.Load(), s.outcomes[reservation.Measured].Load())
	}
}
