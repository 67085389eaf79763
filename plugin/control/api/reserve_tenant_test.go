package api_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/memory"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
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

	// An operator settles what an org's token has reserved, also to less, if it names the org.
	a := r.want(r.as("POST", "/v1/ratelimit/settle", `{"id":"by-acme","actual":20,"org_id":"acme"}`), http.StatusOK)
	if settled := read[api.Settled](r.world, a); settled.Limits[0].Refunded != 1480 {
		t.Errorf("%+v", settled)
	}
	r.wantUsed("afterwards", 1520, 1502, 2)
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
		o.Reservations = ledgerOf(r.records, r.store)
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
