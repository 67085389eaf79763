package api

import (
	"slices"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
)

// listOverrides adds the overrides to the list, as far as there is room. The token of an org does not read reason and
// author.
func (w *inForceReport) listOverrides() {
	for _, x := range w.explanation.Overrides {
		o := x.Override
		if o.Tenant != "" && o.Tenant != w.Org || !hasRoom(w.Overrides, w.most, &w.leftOff.Overrides) {
			continue
		}
		w.inList[o.ID] = true
		item := answers.OverrideInForce{
			ID: o.ID, Kind: o.Kind, Target: x.Target, Endpoint: o.Endpoint, From: o.StartsAt, Until: o.ExpiresAt,
			Reason: o.Reason, Author: o.Author, PublicNote: o.PublicNote,
			General: o.Tenant == "",
		}
		if w.view.tenant {
			item.Reason, item.Author = "", ""
		}
		w.Overrides = append(w.Overrides, item)
	}
}

// addOutcomes records what each listed override does to the requests to one endpoint.
func (w *inForceReport) addOutcomes(id *identity.Identity, r *resolve.Resolution) {
	for _, x := range w.policies.ExplainOverrides(id, w.now, r, w.inList) {
		for _, o := range x.Outcomes {
			if o.Bound != nil && !w.view.readsBound(o.Bound) {
				o.Limit = "a limit whose numbers are not shown"
			}
			o.Bound = nil // it is reused for the next endpoint
			if o, list := o.At(r.Endpoint), w.outcomes[x.Override.ID]; !slices.Contains(list, o) {
				w.outcomes[x.Override.ID] = append(list, o)
			}
		}
	}
}

// describeOverrides says of each listed override what it does.
func (w *inForceReport) describeOverrides() {
	for i := range w.Overrides {
		item := &w.Overrides[i]
		item.Applied, item.Why = resolve.DescribeOutcomes(w.outcomes[item.ID])
	}
}
