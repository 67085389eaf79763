package portal

import (
	"cmp"
	"fmt"
	"maps"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
)

// serveCandidates lists the candidates, the newest first.
func serveCandidates(v *visit) error {
	var found answers.CandidateList
	if err := v.get("/v1/ratelimit/candidates", nil, &found); err != nil {
		return err
	}
	const most = 100
	more := max(0, len(found.Items)-most)
	return v.render("operator_candidates", "Rollout", map[string]any{
		"Items": found.Items[:len(found.Items)-more], "More": more,
	})
}

// policyChange is a policy that a candidate creates, updates or deletes.
type policyChange struct {
	Title   string
	Changes []fieldChange
}

// maxPolicyChanges bounds the changes on a page.
const maxPolicyChanges = 100

// changesOf returns the changes policy by policy.
func changesOf(d *answers.Diff) (list []policyChange, err error) {
	add := func(what string, of *answers.Policy, before, after any) {
		title := fmt.Sprintf("%s %s", what, of.Name)
		if target := cmp.Or(of.Tenant, of.Tier); target != "" {
			title += " of " + target
		}
		if of.Endpoint != "" {
			title += " at " + of.Endpoint
		}
		changes, failed := diffValues(before, after)
		if err = cmp.Or(err, failed); len(list) < maxPolicyChanges {
			list = append(list, policyChange{title, changes})
		}
	}
	for i := range d.Create {
		add("Create", &d.Create[i], nil, d.Create[i])
	}
	for i := range d.Update {
		add("Update", &d.Update[i].After, d.Update[i].Before, d.Update[i].After)
	}
	for i := range d.Delete {
		add("Delete", &d.Delete[i], d.Delete[i], nil)
	}
	return list, err
}

// serveCandidate shows what a candidate changes, and which requests it would answer differently.
func serveCandidate(v *visit) error {
	path := "/v1/ratelimit/candidates/" + answers.PathSegment(v.r.PathValue("name"))
	filters := v.filters("tenant", "policy")
	query := maps.Clone(filters)
	query.Set("limit", pageRows)
	var report answers.CandidateReport
	if err := v.getShared(path+"/report", query, &report); err != nil {
		return err
	}
	var compared answers.CandidateDiff
	if err := v.get(path+"/diff", nil, &compared); err != nil {
		return err
	}
	changes, err := changesOf(&compared.Diff)
	if err != nil {
		return err
	}
	moved, err := changesOf(&compared.Moved)
	if err != nil {
		return err
	}
	return v.render("operator_candidate", report.Candidate.Name, map[string]any{
		"Report": &report, "Changes": changes, "Moved": moved, "Filters": filters,
	})
}
