package spec

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
)

const (
	check     = "/v1/ratelimit/check"
	checkAcme = `{"org_id":"acme","user_id":"u_1","tier":"enterprise","endpoint":"GET /records"}`
)

// decision is an answer of the decision API.
type decision struct {
	Allowed    bool  `json:"allowed"`
	Limit      int64 `json:"limit"`
	Remaining  int64 `json:"remaining"`
	RetryAfter int64 `json:"retry_after"`
}

func TestKongAndTheDecisionAPIShareOneBudget(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	kong, a := p.node("kong", p.dsn), p.serve()
	admitted := race(t, map[string]door{
		"Kong": byHTTP(func() (answer, error) { return kong.send(http.MethodGet, "/records", "apikey", "alice") }),
		"the API": func() (bool, error) {
			var d decision
			got, err := a.send(http.MethodPost, check, checkAcme)
			if err == nil {
				err = json.Unmarshal([]byte(got.Body), &d)
			}
			if err == nil && (got.Status != http.StatusOK || !d.Allowed && d.RetryAfter <= 0) {
				err = fmt.Errorf("%d: %s", got.Status, got.Body)
			}
			return d.Allowed, err
		},
	}, 4, 20)
	require.EqualValues(t, 60, sum(t, admitted), "of 160")
}

func TestWithoutAConfigOnlyCallsThatNeedItAnswer503(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	a := p.serve("--config", "", "--plugin-route", "")
	a.want(http.StatusCreated, nil, http.MethodPost, "/v1/ratelimit/policies?wait=1s", policyOf(1000))
	for _, path := range []string{"policies", "usage"} {
		a.want(http.StatusServiceUnavailable, nil, http.MethodGet, fmt.Sprintf("/v1/orgs/acme/ratelimit/%s", path), "")
	}
	a.want(http.StatusServiceUnavailable, nil, http.MethodPost, check, checkAcme)
}

// chatBudget is a limit that settles: 10,000 tokens for each tenant. Its window is a year: none ends during a spec.
const chatBudget = `tiers: [{name: a, limits: [{name: llm-tokens, scope: tenant, limit: 10000, window_size: 31536000,
    algorithm: fixed_window, settle: {sources: [{from: shared.llm_tokens}], reserve: 100}}]}]`

const settlePath = "/v1/ratelimit/settle"

// reserve returns a check that reserves.
func reserve(id string, tokens int) string {
	return fmt.Sprintf(`{"org_id":"acme","endpoint":"records","reserve":%d,"reservation_id":%q}`, tokens, id)
}

// settlement is an answer to a settlement.
type settlement struct {
	Outcome string
	Limits  []struct {
		Policy            string
		Refunded, Charged int64
	}
}

// remaining returns what is left of acme's budget.
func (a *api) remaining() int64 {
	a.t.Helper()
	var d decision
	a.want(http.StatusOK, &d, http.MethodPost, check, `{"org_id":"acme","endpoint":"records","dry_run":true,"reserve":1}`)
	return d.Remaining
}

func TestAnotherProcessSettlesWhatAKilledOneHasReserved(t *testing.T) {
	t.Parallel()
	p := planeOf(t, chatBudget)
	first, second := p.serve(), p.serve()
	var reserved struct{ Reservation struct{ Policies []string } }
	answered := first.want(http.StatusOK, &reserved, http.MethodPost, check, reserve("chat-1", 1500))
	if len(reserved.Reservation.Policies) != 1 || second.remaining() != 8500 {
		t.Fatalf("%s, and %d tokens remain", answered.Body, second.remaining())
	}
	require.NoError(t, first.cmd.Process.Kill())
	again := second.want(http.StatusOK, nil, http.MethodPost, check, reserve("chat-1", 1500))
	if again.Body != answered.Body || again.Header.Get("Idempotent-Replayed") != "true" {
		t.Errorf("%v %s, want the first answer", again.Header, again.Body)
	}
	for range 2 {
		var s settlement
		second.want(http.StatusOK, &s, http.MethodPost, settlePath, `{"id":"chat-1","actual":420}`)
		if s.Outcome != "settled" || len(s.Limits) != 1 || s.Limits[0].Refunded != 1080 {
			t.Errorf("%+v", s)
		}
	}
	if left := second.remaining(); left != 9580 {
		t.Errorf("%d tokens remain, want 9580", left)
	}
	second.want(http.StatusConflict, nil, http.MethodPost, settlePath, `{"id":"chat-1","actual":421}`)
	second.want(http.StatusUnprocessableEntity, nil, http.MethodPost, check, reserve("chat-1", 1501))
	tenant := second.as(p.token("acme-portal", "tenant:acme"))
	tenant.want(http.StatusNotFound, nil, http.MethodPost, settlePath, `{"id":"chat-1","actual":420}`)
	tenant.want(http.StatusOK, nil, http.MethodPost, check, reserve("chat-1", 700))
	tenant.want(http.StatusForbidden, nil, http.MethodPost, settlePath, `{"id":"chat-1","actual":699}`)
	tenant.want(http.StatusOK, nil, http.MethodPost, settlePath, `{"id":"chat-1","actual":700}`)

	// What is not settled is counted.
	brief := strings.Replace(reserve("chat-2", 5), "{", `{"reserve_timeout":1,`, 1)
	second.want(http.StatusOK, nil, http.MethodPost, check, brief)
	await.That(t, "the timeout is counted", func() bool {
		_, metrics := read(second.metrics, "/metrics")
		return strings.Contains(metrics, `rate_limiter_settlements_total{outcome="timed_out",policy="llm-tokens"} 1`)
	})
}
