package api_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/reservation"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

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
