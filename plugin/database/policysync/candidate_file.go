package policysync

import (
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// The open candidate is saved with the rows: a node that starts without Postgres then decides requests of assigned
// tenants as the nodes do that have lost Postgres meanwhile.

// writeCandidate writes the open candidate, its tenants and its changes; nil: there is none.
func (w *recordWriter) writeCandidate(set *policy.CandidateSet) {
	if set == nil {
		return
	}
	w.write(recordCandidate, func(c *codec) { c.candidate(set) })
	for i := range set.Tenants {
		w.write(recordCandidateTenant, func(c *codec) { c.name(&set.Tenants[i]) })
	}
	for i := range set.Rows {
		row := set.Rows[i]
		w.write(recordCandidateRow, func(c *codec) { c.candidateRow(&row) })
	}
}

func (c *codec) candidate(set *policy.CandidateSet) {
	c.text(&set.Name)
	c.number(&set.Percent)
}

func (c *codec) candidateRow(r *policy.CandidateRow) {
	c.boolean(&r.Deleted)
	visitFields(c, policyFields, &r.Policy)
}

// readRecord reads a record into saved. It reports false for a record of an unknown kind, or out of order.
func (c *codec) readRecord(kind byte, saved *Saved) bool {
	rows, set := &saved.Rows, saved.Candidate
	switch {
	case kind == recordTier:
		rows.Tiers = append(rows.Tiers, policy.TierRow{})
		c.tier(&rows.Tiers[len(rows.Tiers)-1])
	case kind == recordTenant:
		rows.Tenants = append(rows.Tenants, schema.Tenant{})
		c.tenant(&rows.Tenants[len(rows.Tenants)-1])
	case kind == recordPolicy:
		rows.Policies = append(rows.Policies, policy.PolicyRow{})
		c.policy(&rows.Policies[len(rows.Policies)-1])
	case kind == recordOverride:
		rows.Overrides = append(rows.Overrides, policy.Override{})
		c.override(&rows.Overrides[len(rows.Overrides)-1])
	case kind == recordCost:
		rows.Costs = append(rows.Costs, policy.CostRow{})
		c.cost(&rows.Costs[len(rows.Costs)-1])
	case kind == recordCandidate && set == nil:
		saved.Candidate = &policy.CandidateSet{}
		c.candidate(saved.Candidate)
	case kind == recordCandidateTenant && set != nil:
		set.Tenants = append(set.Tenants, "")
		c.name(&set.Tenants[len(set.Tenants)-1])
	case kind == recordCandidateRow && set != nil:
		set.Rows = append(set.Rows, policy.CandidateRow{})
		c.candidateRow(&set.Rows[len(set.Rows)-1])
	default:
		return false
	}
	return true
}
