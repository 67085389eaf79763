package api_test

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/reservation"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

func TestACheckReservesAndIsSettledToWhatWasUsed(t *testing.T) {
	t.Parallel()
	r := reservingChats(t)
	got := r.reserves(admin, "acme", "chat-1", 1500)
	if !got.Allowed || got.Reservation == nil || got.Reservation.ID != "chat-1" || got.Reservation.Tokens != 1500 ||
		!slices.Equal(got.Reservation.Policies, []string{"llm-tokens", "llm-tokens-of-all"}) || got.Notes != nil {
		t.Fatalf("%+v, %+v", got, got.Reservation)
	}
	r.wantUsed("after a reservation", 1500, 1500, 1)
	settled := r.settles(admin, "chat-1", 420)
	want := api.SettledLimit{Policy: "llm-tokens", Scope: "tenant", Refunded: 1080, Outcome: "settled"}
	if settled.Outcome != "settled" || settled.Reserved != 1500 || settled.Actual != 420 || len(settled.Limits) != 2 ||
		settled.Limits[0] != want || settled.Limits[1].Refunded != 1080 {
		t.Errorf("%+v", settled)
	}
	r.wantUsed("after it was settled to less", 420, 420, 1)
	r.reserves(admin, "acme", "chat-2", 100)
	settled = r.settles(admin, "chat-2", 12_000)
	if settled.Limits[0].Charged != 11_900 || settled.Limits[0].Refunded != 0 {
		t.Errorf("%+v: want 11900 charged", settled)
	}
	r.wantUsed("after one was settled to more than there is", 12_420, 12_420, 2)
	if got = r.reserves(admin, "acme", "chat-3", 1); got.Allowed || got.Reservation != nil {
		t.Errorf("%+v: want it denied, because the budget is overspent", got)
	}
	r.reserves(admin, "globex", "chat-4", 1)
	if settled = r.settles(admin, "chat-4", 81); settled.Limits[0].Charged != 80 {
		t.Errorf("%+v: want 80 charged beyond a reservation of 1", settled)
	}
	s := &r.settled
	if s.reserved.Load() != 3202 || s.actual.Load() != 2*(420+12_000+81) || s.outcomes[reservation.Measured].Load() != 6 ||
		s.change.Load() != 2*(-1080+11_900+80) {
		t.Errorf("observed: %d reserved, %d used, a change of %d, %d measured", s.reserved.Load(), s.actual.Load(),
			s.change.Load(), s.outcomes[reservation.Measured].Load())
	}
}

func TestTheSameReservationSentAgainTakesNothing(t *testing.T) {
	t.Parallel()
	r := reservingChats(t)
	const body = `{"org_id":"acme","reserve":1500,"reservation_id":"chat-1","endpoint":"POST /chat"}`
	first := r.want(r.as("POST", checkPath, body), http.StatusOK)
	other := r.replica()
	for _, w := range []*world{r.world, other} {
		again := w.want(w.as("POST", checkPath, body), http.StatusOK)
		if again.Body.String() != first.Body.String() || again.Header().Get("Idempotent-Replayed") != "true" ||
			first.Header().Get("Idempotent-Replayed") != "" {
			t.Errorf("%v %s, want the first answer: %s", again.Header(), again.Body, first.Body)
		}
		for _, changed := range []string{
			strings.Replace(body, "1500", "1501", 1), strings.Replace(body, "acme", "globex", 1),
			strings.Replace(body, "{", `{"reserve_timeout":9,`, 1), strings.Replace(body, "{", `{"cost":2,`, 1),
		} {
			w.wantFaults(w.as("POST", checkPath, changed), "body.reservation_id")
		}
	}
	r.wantUsed("after repetitions", 1500, 1500, 1)
	settled := r.want(r.settle(admin, "chat-1", 700), http.StatusOK)
	for _, w := range []*world{r.world, other} {
		again := w.want(w.settle(admin, "chat-1", 700), http.StatusOK)
		if again.Body.String() != settled.Body.String() || again.Header().Get("Idempotent-Replayed") != "true" {
			t.Errorf("%v %s, want the first answer: %s", again.Header(), again.Body, settled.Body)
		}
		w.wantProblem(w.settle(admin, "chat-1", 701), http.StatusConflict, "settled to 700 tokens")
		if a := w.want(w.as("POST", checkPath, body), http.StatusOK); a.Body.String() != first.Body.String() {
			t.Errorf("after the settlement the check is answered by %s", a.Body)
		}
	}
	r.wantUsed("after repetitions of the settlement", 700, 700, 1)
}

func TestADeniedCheckReservesNothingAndItsIdIsFree(t *testing.T) {
	t.Parallel()
	r := reservingChats(t)
	denied := r.reserves(admin, "acme", "chat-1", 10_001)
	if denied.Allowed || denied.Reservation != nil || denied.Reason != "cost_too_large" {
		t.Errorf("%+v", denied)
	}
	r.wantProblem(r.settle(admin, "chat-1", 5), http.StatusNotFound, "no reservation with this id")
	r.wantUsed("after a denial", 0, 0, 0)
	if got := r.reserves(admin, "acme", "chat-1", 10_000); !got.Allowed {
		t.Errorf("%+v", got)
	}
	r.settles(admin, "chat-1", 1)
	r.wantUsed("after the id was used again", 1, 1, 1)
}

func TestAPlainCheckAndADryRunMakeNoReservation(t *testing.T) {
	t.Parallel()
	r := reservingChats(t)
	a := r.want(r.as("POST", checkPath, `{"org_id":"acme"}`), http.StatusOK)
	var names []string
	for name := range read[map[string]any](r.world, a) {
		names = append(names, name)
	}
	slices.Sort(names)
	const want = "allowed limit policy policy_ref reason remaining reset reset_epoch statuses tier tier_source"
	if got := strings.Join(names, " "); got != want || a.Header().Get("Idempotent-Replayed") != "" {
		t.Errorf("a plain check is answered with %s: %s", got, a.Body)
	}
	r.wantUsed("after a plain check", 150, 150, 1)
	for tokens, allowed := range map[string]bool{"9850": true, "9851": false} {
		for _, id := range []string{"", `,"reservation_id":"chat-1"`} {
			dry := r.checks(viewer, `{"org_id":"acme","dry_run":true,"reserve":`+tokens+id+`}`)
			if dry.Allowed != allowed || dry.Reservation != nil || dry.Statuses[0].Cost < 9850 {
				t.Errorf("a dry run that would reserve %s: %+v", tokens, dry)
			}
		}
	}
	r.wantUsed("after dry runs", 150, 150, 1)
	r.wantProblem(r.settle(admin, "chat-1", 5), http.StatusNotFound, "no reservation")
}

func TestWhereNoLimitSettlesAReservationIsEmptyAndSaysSo(t *testing.T) {
	t.Parallel()
	config := chats()
	config.Tiers[0].Limits, config.Global = config.Tiers[0].Limits[1:], schema.Global{}
	r := reservingChats(t)
	ruled(t, r.decider, config, policy.Rows{})
	for range 2 {
		got := r.reserves(admin, "acme", "chat-1", 1500)
		if !got.Allowed || len(got.Reservation.Policies) != 0 || len(got.Notes) != 1 ||
			!strings.Contains(got.Notes[0], "no limit that applies settles") {
			t.Errorf("%+v, %+v", got, got.Reservation)
		}
		if settled := r.settles(admin, "chat-1", 10); len(settled.Limits) != 0 || settled.Outcome != "settled" {
			t.Errorf("%+v", settled)
		}
	}
	r.wantUsed("afterwards", 0, 0, 1)
}

// expire lets the ledger report what has timed out.
func (r *reserving) expire() {
	ended, cancel := context.WithCancel(r.Context())
	cancel()
	r.ledger.Expire()
	require.NoError(r, r.ledger.Run(ended)) // waits for its calls
}

func TestALateSettlementOnlyChargesAndAnEndedIdIsUnknown(t *testing.T) {
	t.Parallel()
	r := reservingChats(t)
	for _, id := range []string{"less", "more", "in-time"} {
		r.reserves(admin, "acme", id, 1000)
	}
	r.passed.Store(59_000_000_000) // of a timeout of 60 s
	r.settles(admin, "in-time", 500)
	r.wantUsed("before the timeout", 2500, 2500, 3)
	r.passed.Store(61_000_000_000)
	r.expire() // "less" and "more"
	if n := r.settled.outcomes[reservation.TimedOut].Load(); n != 4 {
		t.Errorf("%d limits of two reservations have timed out, want two of each", n)
	}
	r.expire()
	for id, charged := range map[string]int64{"less": 0, "more": 700} {
		for range 2 {
			settled := r.settles(admin, id, map[string]int{"less": 300, "more": 1700}[id])
			if settled.Outcome != "late" || settled.Limits[0].Outcome != "late" || settled.Limits[0].Refunded != 0 ||
				settled.Limits[0].Charged != charged {
				t.Errorf("%s: %+v", id, settled)
			}
		}
	}
	r.wantUsed("after the timeout", 3200, 3200, 3)
	late, timedOut := r.settled.outcomes[reservation.Late].Load(), r.settled.outcomes[reservation.TimedOut].Load()
	if late != 4 || timedOut != 4 {
		t.Errorf("%d late settlements of %d that timed out, want 4", late, timedOut)
	}
	r.wantProblem(r.settle(admin, "never-made", 1), http.StatusNotFound, "no reservation")
}

func TestALimitThatWasChangedMeanwhileIsNotSettled(t *testing.T) {
	t.Parallel()
	r := reservingChats(t)
	r.reserves(admin, "acme", "less", 1000)
	r.reserves(admin, "acme", "more", 1000)
	changed := chats()
	changed.Tiers[0].Limits[0].WindowSize /= 2
	ruled(t, r.decider, changed, policy.Rows{})
	r.reserves(admin, "acme", "other", 1) // writes the bucket in the form of the new limit
	before := r.used()[0]
	r.settles(admin, "less", 10)
	if settled := r.settles(admin, "more", 5000); settled.Limits[0].Outcome != "lost" ||
		settled.Limits[1].Charged != 4000 {
		t.Errorf("%+v: want the charge of the changed limit lost, and the other made", settled)
	}
	if used := r.used(); used[0] != before || used[1] != 5011 {
		t.Errorf("%v are used, want %d as before, and 5011", used, before)
	}
}
