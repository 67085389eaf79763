package reservation

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// The key of a bucket does not say whom a request is billed to, and what it called. An address is no tenant.
func TestASettlementNamesTheTenantAndTheEndpointOfItsRequest(t *testing.T) {
	for name, want := range map[identity.Name]string{
		{Kind: identity.Tenant, ID: "acme"}:  "acme",
		{Kind: identity.IP, ID: "192.0.2.7"}: "",
		{}:                                   "",
	} {
		var d decision.Decision
		d.Reset()
		d.Identity.Tenant, d.Resolution.Endpoint = name, "POST /chat"
		d.Resolution.Bounds = []policy.Bound{boundOf(budget(t, 100), 100)}
		d.Grow()
		d.Statuses[0] = decision.Status{Source: decision.Redis, Charged: true}
		text := encode(t, NewRecord(&d, 1))
		var read Record // of another process
		require.NoError(t, read.UnmarshalBinary(text))
		w := newWorld(t, 0)
		read.ReportSettled(w, make([]Settlement, 1), limit.Second)
		if s := w.settled[0]; s.Tenant != want || s.Endpoint != "POST /chat" || s.Delay != limit.Second {
			t.Errorf("of %+v the settlement is %+v, want the tenant %q", name, s, want)
		}
	}
}
