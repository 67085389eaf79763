package replay

import (
	"cmp"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/node/routeconfig"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// complete adds what the log of a request lacks and the decK file has: names and tags of the consumer, or the tier of a
// tenant that the log states. What the log has stays: of two tags for a tier, the first counts.
func (g *Gateway) complete(r *Request, decider *admit.Decider) {
	if r.Caller != nil && r.Caller.Tier == "" {
		g.caller = *r.Caller
		g.caller.Tier = g.tiers[decider][r.Caller.Tenant]
		r.Caller = &g.caller
	}
	if r.Consumer == nil {
		return
	}
	if inFile := g.file.Consumer(r.Consumer); inFile != nil {
		g.consumer = identity.Consumer{
			ID: cmp.Or(r.Consumer.ID, inFile.ID), Username: cmp.Or(r.Consumer.Username, inFile.Username),
			CustomID: cmp.Or(r.Consumer.CustomID, inFile.CustomID),
			Tags:     append(append(g.consumer.Tags[:0], r.Consumer.Tags...), inFile.Tags...),
		}
		r.Consumer = &g.consumer
	}
}

// tenantTiers returns the tiers of tenants by the consumers of a file. It leaves out tenants of several tiers.
func tenantTiers(file *routeconfig.File, config schema.Config) (map[string]string, error) {
	list, err := file.ConsumerTiers(config)
	tiers := map[string]string{}
	for _, c := range list {
		if tier, seen := tiers[c.Tenant]; seen && tier != c.Tier {
			c.Tier = ""
		}
		tiers[c.Tenant] = c.Tier
	}
	return tiers, err
}

// countWithoutTier counts a request of a tenant whose tier is not known, where tiers differ.
func (g *Gateway) countWithoutTier(decider *admit.Decider, d *decision.Decision) {
	plan := decider.Policies.Load()
	ofTenant := d.Identity.Tenant.Kind == identity.Tenant && !d.Resolution.Exempt
	if ofTenant && d.Identity.Tier == "" && len(plan.Rules.Tier) > 0 &&
		plan.TierFrom(&d.Identity) == resolve.TierOfDefault {
		g.WithoutTier++
	}
}
