package api_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

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
