package spec

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
)

// deniedRequest has the fields of a denial that the spec reads.
type deniedRequest struct {
	At            time.Time `json:"at"`
	Org           string    `json:"org"`
	Tier          string    `json:"tier"`
	Policy        string    `json:"policy"`
	PolicyID      int64     `json:"policy_id"`
	PolicyVersion int64     `json:"policy_version"`
	PolicyFor     string    `json:"policy_for"`
	Remaining     *int64    `json:"remaining"`
	RetryAt       time.Time `json:"retry_at"`
	WouldAdmit    string    `json:"would_admit"`
}

func TestTheRequestIDOfADenialLeadsToTheSameAnswerAtEveryDoor(t *testing.T) {
	t.Parallel()
	p := planeOf(t, `tiers: [{name: enterprise, limits: [
		{name: year, scope: tenant, limit: 2, window_size: 31536000, algorithm: fixed_window}]}], default_tier: enterprise`)
	p.operate("policy", "put", "hour", "--tenant", "beta", "--limit", "1", "--window", "3600", "--reason", "a spec")
	api, n := p.serve("--keeper-database", p.dsn), p.node("node-1", p.dsn)
	ofAcme := api.as(p.token("acme-ops", "tenant:acme"))
	// The first one is denied by a row, so the node has the rows when the other one is denied by its config.
	for _, by := range []struct{ key, org, policy, policyFor string }{
		{"beth", "beta", "hour", "tenant"}, {"alice", "acme", "year", "tier enterprise"},
	} {
		var denied answer
		await.That(t, "a request to be denied", func() bool {
			got, err := n.send("GET", "/records", "apikey", by.key)
			require.NoError(t, err)
			denied = answer{got.Status, got.Header, ""}
			return got.Status == http.StatusTooManyRequests && strings.Contains(got.Body, `"`+by.policy+`"`)
		})
		id := denied.Header.Get("X-Kong-Request-Id")
		path := "/v1/ratelimit/denials/" + id
		await.That(t, path+" to answer", func() bool { return api.status(path) == http.StatusOK })
		var found struct {
			Denials []deniedRequest `json:"denials"`
		}
		api.want(http.StatusOK, &found, http.MethodGet, path, "")
		d := found.Denials[0]
		isRow := by.policyFor == "tenant"
		if len(found.Denials) != 1 || d.Org != by.org || d.Policy != by.policy || d.PolicyFor != by.policyFor ||
			d.Tier != "enterprise" || (d.PolicyID > 0) != isRow || d.PolicyVersion == 0 {
			t.Errorf("the API says of %s: %+v", id, found.Denials)
		}
		if left := denied.Header.Get("X-RateLimit-Remaining"); d.Remaining == nil || fmt.Sprint(*d.Remaining) != left {
			t.Errorf("%v are left, and the response says %q", d.Remaining, left)
		}
		wait, err := strconv.Atoi(denied.Header.Get("Retry-After"))
		if gap := d.RetryAt.Sub(d.At) - time.Duration(wait)*time.Second; err != nil || gap < 0 || gap >= time.Second {
			t.Errorf("a retry at %v, %v after the denial, and the response says %d s (%v)", d.RetryAt, d.At, wait, err)
		}
		for _, command := range []string{"explain", "denials"} {
			text := p.operate(command, "--request-id", id)
			if !strings.Contains(text, "tenant "+by.org) || !strings.Contains(text, d.WouldAdmit) {
				t.Errorf("ratelimit %s says\n%s\nwant %q", command, text, d.WouldAdmit)
			}
		}
		want := http.StatusNotFound
		if by.org == "acme" {
			want = http.StatusOK
		}
		ofAcme.want(want, nil, http.MethodGet, path, "")
	}
}
