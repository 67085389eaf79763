package phase

import (
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	kongwire "github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/kong/wire"
)

// serializedAs is the key under which Kong's log plugins write the decision.
const serializedAs = "rate_limit"

// trace returns the decision as Kong's log plugins write it. It is sent only if the config has log_decisions, and
// allocates.
func trace(d *decision.Decision) kongwire.Struct {
	t := kongwire.Struct{}.Text("result", d.Result.String()).Text("mode", d.Mode.String()).
		Text("tier", d.Resolution.Tier).Text("endpoint", d.Resolution.Endpoint)
	if d.Reason != decision.Counted {
		t = t.Text("reason", d.Reason.String())
	}
	t = t.Text("exempt_by", d.Resolution.Exemption.Source())
	if d.Denied() && d.RetryAfter != limit.Never {
		t = t.Number("retry_after", d.RetryAfter.Seconds())
	}
	if d.Binding >= 0 && d.Binding < len(d.Statuses) {
		p, status := d.Resolution.Bounds[d.Binding].Policy, &d.Statuses[d.Binding]
		t = t.Text("policy", p.Name)
		if p.Row != 0 {
			t = t.Number("policy_id", p.Row)
		}
		t = t.Number("limit", p.Limit.Spec().Burst).
			Number("remaining", status.Remaining).
			Text("source", status.Source.String())
	}
	if d.PolicyVersion != 0 {
		t = t.Number("policy_version", d.PolicyVersion)
	}
	return t.Flag("shadow_denied", d.ShadowDenied).Flag("degraded", d.Degraded)
}
