package response_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/policytest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/response"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

func TestClientsReadEveryFieldOfAPolicy(t *testing.T) {
	policytest.WantShown(t, "usage.go or problem.go", map[string]string{
		"fail_mode": "it matters while Redis is unavailable, which the golden files of store_away show",
		"accuracy":  "nodes count by it, and clients read the same numbers",
		"fair":      "clients read no shares, only that one is used: the golden files of share_used",
	}, func(p schema.Policy) (text string) {
		for _, quarters := range []int64{3, 4} {
			d := spent(t, p, quarters)
			config := schema.Config{ShowCost: true, KongHeaders: true, ShowSharedLimits: true}
			usage := response.NewUsage(d, "")
			body, err := usage.Body()
			require.NoError(t, err)
			text += show(render(config, d, false)) + string(body)
		}
		return text
	})
}

// spent returns the decision of a request by p alone, some quarters of which are spent.
func spent(t *testing.T, p schema.Policy, quarters int64) *decision.Decision {
	t.Helper()
	plan, id := policytest.Resolve(t, p)
	d := new(decision.Decision)
	d.Reset()
	d.Identity = id
	plan.ResolveAt(&d.Identity, now, &d.Resolution)
	d.Grow()
	for i := range d.Resolution.Bounds {
		b, state := &d.Resolution.Bounds[i], limit.State{}
		b.Policy.Limit.Advance(&state, now)
		b.Policy.Limit.Spend(&state, now, b.Policy.Limit.Capacity()*quarters/4)
		d.Statuses[i] = decision.Status{
			Status: b.Policy.Limit.Status(&state, now), Wait: b.Policy.Limit.Wait(&state, now, b.Cost), Now: now,
			Source: decision.Memory,
		}
	}
	d.Combine()
	return d
}
