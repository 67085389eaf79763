package spec

import (
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
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
	var byKong, byAPI, denied, other atomic.Int64
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			for range 20 {
				switch got, err := kong.send(http.MethodGet, "/records", "apikey", "alice"); {
				case err == nil && got.Status == http.StatusOK:
					byKong.Add(1)
				case err == nil && got.Status == http.StatusTooManyRequests:
					denied.Add(1)
				default:
					other.Add(1)
				}
			}
		})
		group.Go(func() {
			for range 20 {
				var d decision
				got, err := a.send(http.MethodPost, check, checkAcme)
				switch {
				case err != nil || got.Status != http.StatusOK || json.Unmarshal([]byte(got.Body), &d) != nil:
					other.Add(1)
				case d.Allowed:
					byAPI.Add(1)
				case d.RetryAfter > 0:
					denied.Add(1)
				}
			}
		})
	}
	group.Wait()
	t.Logf("admitted by Kong %d, by the API %d", byKong.Load(), byAPI.Load())
	kongs, apis := byKong.Load(), byAPI.Load()
	if kongs+apis != 60 || kongs == 0 || apis == 0 || denied.Load() != 100 || other.Load() != 0 {
		t.Errorf("admitted %d and %d, want 60 together; denied %d, want 100; otherwise %d",
			kongs, apis, denied.Load(), other.Load())
	}
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
