package api_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

const (
	candidates = "/v1/ratelimit/candidates"
	july       = candidates + "/july"
	why        = `{"reason":"a test"}`
)

// openJuly opens the candidate july, which changes the limit of the daily policy.
func openJuly(w *world) {
	w.Helper()
	w.made(daily)
	w.want(w.as("POST", candidates, `{"name":"july","reason":"a test"}`), http.StatusCreated)
	w.want(w.as("PUT", july+"/policies", strings.Replace(daily, "1000", "500", 1)), http.StatusOK)
}

func TestACandidateIsPromotedAndRolledBackThroughTheAPI(t *testing.T) {
	t.Parallel()
	w := open(t)
	openJuly(w)
	d := read[rows.CandidateDiff](w, w.want(w.as("GET", july+"/diff", ""), http.StatusOK))
	if len(d.Diff.Update) != 1 || d.Diff.Update[0].After.Limit.Limit != 500 || !d.Moved.Empty() {
		t.Errorf("the difference is %+v", d)
	}
	limit := func() int64 {
		p := read[answers.Page[rows.Policy]](w, w.want(w.as("GET", policies, ""), http.StatusOK))
		return p.Items[0].Limit.Limit
	}
	if got := limit(); got != 1000 {
		t.Errorf("beside a candidate the limit is %d", got)
	}
	const once = "promote-july"
	first := w.want(w.as("POST", july+"/promote", why, "Idempotency-Key", once), http.StatusOK)
	if got := limit(); got != 500 {
		t.Errorf("after the promotion the limit is %d", got)
	}
	again := w.want(w.as("POST", july+"/promote", why, "Idempotency-Key", once), http.StatusOK)
	if again.Body.String() != first.Body.String() || again.Header().Get("Idempotent-Replayed") != "true" {
		t.Errorf("sent again, it answers %s", again.Body)
	}
	twice := w.want(w.as("POST", july+"/promote", why), http.StatusConflict)
	if !strings.Contains(twice.Body.String(), "it was promoted at ") {
		t.Errorf("promoted twice: %s", twice.Body)
	}
	w.want(w.as("POST", july+"/rollback", why), http.StatusOK)
	if got := limit(); got != 1000 {
		t.Errorf("after the rollback the limit is %d", got)
	}
}

func TestAPolicyOfACandidateHasTheFaultsOfAPolicy(t *testing.T) {
	t.Parallel()
	w := open(t)
	openJuly(w)
	for _, change := range [][2]string{{"1000", "0"}, {`"daily"`, `"a b"`}, {`"gold"`, `"gold","tenant":"acme"`}} {
		body := strings.Replace(daily, change[0], change[1], 1)
		want := w.want(w.as("POST", policies, body), http.StatusUnprocessableEntity)
		got := w.want(w.as("PUT", july+"/policies", body), http.StatusUnprocessableEntity)
		if got.Body.String() != want.Body.String() {
			t.Errorf("%s: %s, want %s", body, got.Body, want.Body)
		}
	}
}

func TestACandidateDeletesAPolicyOfEveryTarget(t *testing.T) {
	t.Parallel()
	w := open(t)
	openJuly(w)
	const ofUser = `{"name":"mine","tenant":"acme","user":"u 1","scope":"user","limit":5,"window":"1h"}`
	w.made(ofUser)
	w.want(w.as("DELETE", july+"/policies?policy=mine&tenant=acme&reason=x", ""), http.StatusNotFound)
	w.want(w.as("DELETE", july+"/policies?policy=mine&reason=x", ""), http.StatusUnprocessableEntity)
	w.want(w.as("DELETE", july+"/policies?policy=mine&user=u+1&reason=x", ""), http.StatusUnprocessableEntity)
	w.want(w.as("DELETE", july+"/policies?policy=mine&tenant=acme&user=u+1&reason=x", ""), http.StatusOK)
	d := read[rows.CandidateDiff](w, w.want(w.as("GET", july+"/diff", ""), http.StatusOK))
	if len(d.Diff.Delete) != 1 || d.Diff.Delete[0].User != "u 1" {
		t.Errorf("the candidate deletes %+v", d.Diff.Delete)
	}
}

func TestFaultsOfAnAssignmentNameTheirField(t *testing.T) {
	t.Parallel()
	w := open(t)
	openJuly(w)
	for body, want := range map[string]string{
		`{"percent":101,"reason":"x"}`:      "body.percent",
		`{"percent":-1,"reason":"x"}`:       "body.percent",
		`{"reason":"x"}`:                    "body.percent",
		`{"percent":5}`:                     "reason",
		`{"percent":5,"reason":" "}`:        "body.reason",
		`{"add":[""],"reason":"x"}`:         "body.tenant",
		`{"add":["a\u0000"],"reason":"x"}`:  "body.add",
		`{"percent":5,"slot":1,"reason":1}`: "body",
	} {
		a := w.want(w.as("POST", july+"/assign", body), http.StatusUnprocessableEntity)
		if !strings.Contains(a.Body.String(), want) {
			t.Errorf("%s: %s, want a fault of %s", body, a.Body, want)
		}
	}
	w.want(w.as("POST", july+"/assign", `{"remove":["acme"],"reason":"x"}`), http.StatusNotFound)
	a := w.want(w.as("POST", july+"/assign", `{"percent":5,"add":["acmee"],"reason":"x"}`), http.StatusOK)
	if !strings.Contains(a.Body.String(), `nothing about tenant \"acmee\"`) {
		t.Errorf("no warning of a tenant that nothing is known about: %s", a.Body)
	}
}

// enforcesForAcme puts a candidate in force that puts policies and is assigned to acme, beside a config without rows.
func (p *planned) enforcesForAcme(puts ...schema.Policy) {
	p.Helper()
	set := &policy.CandidateSet{Name: "july", Tenants: []string{"acme"}}
	for _, put := range puts {
		set.Rows = append(set.Rows, policy.CandidateRow{Policy: put})
	}
	snapshot, _ := policy.NewSnapshot(policy.Rows{Version: 7}, nil)
	both, faults := snapshot.WithCandidate(set)
	if len(faults) > 0 {
		p.Fatal(faults)
	}
	p.decider.Policies.Store(p.decider.Policies.Load().With(both))
}

func TestAReservationOfAnAssignedTenantWaitsAsLongAsTheCandidatesLimit(t *testing.T) {
	t.Parallel()
	r := reservingChats(t)
	tokens := chats().Tiers[0].Limits[0]
	settle := *tokens.Settle
	settle.Timeout *= 10
	tokens.Settle = &settle
	r.enforcesForAcme(schema.Policy{Tier: "a", Limit: tokens})
	beta := r.reserves(admin, "beta", "chat-1", 1500)
	acme := r.reserves(admin, "acme", "chat-2", 1500)
	longer := time.Duration(settle.Timeout) * time.Second * 9 / 10
	if got := acme.Reservation.SettleBy.Sub(beta.Reservation.SettleBy); got < longer-time.Second {
		t.Errorf("acme may settle %v later than beta, want %v", got, longer)
	}
	if settled := r.settles(admin, "chat-2", 700); len(settled.Limits) == 0 || settled.Limits[0].Refunded != 800 {
		t.Errorf("acme's reservation settles as %+v", settled)
	}
}

func TestNewSubjectsOfAnAssignedTenantAreThoseOfTheCandidatesLimits(t *testing.T) {
	t.Parallel()
	p, _, _ := naming(t, 40) // 400 at once
	perUser := schema.Limit{Name: "per-user", Scope: "user", Limit: 50, WindowSize: 86400}
	p.enforcesForAcme(schema.Policy{Tier: "essentials", Limit: perUser})
	for i := range 4 {
		p.want(p.do(call{ofAcme, "POST", batchPath, users(100*i, 100, ""), nil}), http.StatusOK)
	}
	const another = `{"org_id":"acme","user_id":"one-more"}`
	p.want(p.do(call{ofAcme, "POST", checkPath, another, nil}), http.StatusTooManyRequests)
}
