package spec

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

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

func TestADryRunAndUsageReadTokensSpentByKongAndSpendNone(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	kong, a := p.node("kong", p.dsn), p.serve()
	kong.want(times(7, 200), "/records", "apikey", "alice")
	for range 3 {
		var d decision
		a.want(http.StatusOK, &d, http.MethodPost, check, strings.Replace(checkAcme, "{", `{"dry_run":true,`, 1))
		if !d.Allowed || d.Limit != 60 || d.Remaining != 53 {
			t.Errorf("%+v: want 53 of 60 left", d)
		}
		if used := a.used(); used != 7 {
			t.Errorf("%d are used, want 7", used)
		}
	}
	a.want(http.StatusOK, nil, http.MethodPost, "/v1/orgs/acme/ratelimit/reset",
		`{"tier":"enterprise","reason":"an apology"}`)
	if used := a.used(); used != 0 {
		t.Errorf("%d are used after a reset, want 0", used)
	}
	kong.want([]int{200}, "/records", "apikey", "alice")
}

// used returns the usage of acme's limit a year.
func (a *api) used() int64 {
	a.t.Helper()
	var usage struct {
		Items []struct {
			Policy string
			Used   int64
		}
	}
	a.want(http.StatusOK, &usage, http.MethodGet, "/v1/orgs/acme/ratelimit/usage?tier=enterprise&policy=year", "")
	if len(usage.Items) != 1 {
		a.t.Fatalf("%+v: want one bucket", usage)
	}
	return usage.Items[0].Used
}

func TestATokenOfATenantReadsOnlyItsOwnUsage(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	a := p.serve()
	acme := a.as(p.token("acme-portal", "tenant:acme"))
	if used := acme.used(); used != 0 {
		t.Errorf("%d are used, want 0", used)
	}
	for _, path := range []string{"policies", "overrides", "usage"} {
		acme.want(http.StatusOK, nil, http.MethodGet, "/v1/orgs/acme/ratelimit/"+path, "")
		acme.want(http.StatusForbidden, nil, http.MethodGet, "/v1/orgs/beta/ratelimit/"+path, "")
	}
	for _, path := range []string{"policies", "audit", "fleet"} {
		acme.want(http.StatusForbidden, nil, http.MethodGet, "/v1/ratelimit/"+path, "")
	}
	acme.want(http.StatusForbidden, nil, http.MethodPost, "/v1/ratelimit/policies", policyOf(1))
	acme.want(http.StatusForbidden, nil, http.MethodPost, "/v1/orgs/acme/ratelimit/overrides",
		`{"kind":"exempt","permanent":true,"reason":"us"}`)
	acme.want(http.StatusForbidden, nil, http.MethodPost, "/v1/orgs/acme/ratelimit/reset", `{"reason":"us"}`)
	acme.want(http.StatusForbidden, nil, http.MethodPost, check, `{"org_id":"beta"}`)
	acme.want(http.StatusOK, nil, http.MethodPost, check, `{"org_id":"acme","endpoint":"GET /records"}`)
	a.as("rl_"+strings.Repeat("A", 43)).want(http.StatusUnauthorized, nil, http.MethodGet, "/v1/orgs/acme/ratelimit/usage",
		"")
	p.operate("token", "revoke", "acme-portal", "--reason", "over")
	await.That(t, "the revoked token is denied", func() bool {
		got, err := acme.send(http.MethodGet, "/v1/orgs/acme/ratelimit/usage", "")
		return err == nil && got.Status == http.StatusUnauthorized
	})
	log := a.log.String()
	if strings.Contains(log, acme.secret) || strings.Contains(log, a.secret) || !strings.Contains(log, "acme-portal") {
		t.Errorf("the log must have names of tokens, and no secret:\n%s", log)
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
