package portal

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"time"
)

// candidate is a set of changes of policies that is tried before it is active.
type candidate struct {
	Name      string    `json:"name"`
	State     string    `json:"state"`
	Policies  int64     `json:"policies"`
	Percent   int64     `json:"percent"`
	Tenants   []string  `json:"tenants"`
	CreatedAt time.Time `json:"created_at"`
	CreatedBy string    `json:"created_by"`
	Reason    string    `json:"reason"`
	EndedAt   time.Time `json:"ended_at"`
	EndedBy   string    `json:"ended_by"`
	EndReason string    `json:"end_reason"`
}

// serveCandidates lists the candidates, the newest first.
func serveCandidates(v *visit) error {
	var found struct {
		Items []candidate `json:"items"`
	}
	if err := v.get("/v1/ratelimit/candidates", nil, &found); err != nil {
		return err
	}
	const most = 100
	more := max(0, len(found.Items)-most)
	return v.render("operator_candidates", "Rollout", map[string]any{
		"Items": found.Items[:len(found.Items)-more], "More": more,
	})
}

// policyDiff is a difference of two sets of policies.
type policyDiff struct {
	Create []json.RawMessage `json:"create"`
	Update []struct {
		Before json.RawMessage `json:"before"`
		After  json.RawMessage `json:"after"`
	} `json:"update"`
	Delete    []json.RawMessage `json:"delete"`
	Unchanged int64             `json:"unchanged"`
}

// policyChange is a policy that a candidate creates, updates or deletes.
type policyChange struct {
	Title   string
	Changes []fieldChange
}

// maxPolicyChanges bounds the changes on a page.
const maxPolicyChanges = 100

// changes returns the changes policy by policy.
func (d *policyDiff) changes() ([]policyChange, error) {
	var list []policyChange
	add := func(what string, before, after json.RawMessage) error {
		var p struct{ Name, Tier, Tenant, Endpoint string }
		row := after
		if len(after) == 0 {
			row = before
		}
		if err := json.Unmarshal(row, &p); err != nil {
			return fmt.Errorf("read a policy of a candidate: %w", err)
		}
		changes, err := diffJSON(before, after)
		title := fmt.Sprintf("%s %s", what, p.Name)
		if of := cmp.Or(p.Tenant, p.Tier); of != "" {
			title += " of " + of
		}
		if p.Endpoint != "" {
			title += " at " + p.Endpoint
		}
		if list = append(list, policyChange{title, changes}); len(list) > maxPolicyChanges {
			list = list[:maxPolicyChanges]
		}
		return err
	}
	for _, row := range d.Create {
		if err := add("Create", nil, row); err != nil {
			return nil, err
		}
	}
	for _, row := range d.Update {
		if err := add("Update", row.Before, row.After); err != nil {
			return nil, err
		}
	}
	for _, row := range d.Delete {
		if err := add("Delete", row, nil); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// candidateReport is which requests a candidate would answer differently.
type candidateReport struct {
	Candidate candidate `json:"candidate"`
	Since     time.Time `json:"since"`
	Until     time.Time `json:"until"`
	Processes int64     `json:"processes"`
	Dropped   int64     `json:"dropped"`
	Total     struct {
		Requests      int64 `json:"requests"`
		ActiveOnly    int64 `json:"active_only"`
		CandidateOnly int64 `json:"candidate_only"`
		Both          int64 `json:"both"`
		Tenants       int64 `json:"tenants_denied"`
	} `json:"total"`
	Windows []struct {
		Policy string  `json:"policy"`
		Seen   float64 `json:"seen"`
	} `json:"windows"`
	Items []struct {
		Tenant        string    `json:"tenant"`
		Endpoint      string    `json:"endpoint"`
		Policy        string    `json:"policy"`
		Requests      int64     `json:"requests"`
		ActiveOnly    int64     `json:"active_only"`
		CandidateOnly int64     `json:"candidate_only"`
		Both          int64     `json:"both"`
		LastAt        time.Time `json:"last_at"`
	} `json:"items"`
}

// serveCandidate shows what a candidate changes, and which requests it would answer differently.
func serveCandidate(v *visit) error {
	path := "/v1/ratelimit/candidates/" + pathSegment(v.r.PathValue("name"))
	filters := v.filters("tenant", "policy")
	query := maps.Clone(filters)
	query.Set("limit", pageRows)
	var report candidateReport
	if err := v.getCached(path+"/report", query, &report); err != nil {
		return err
	}
	var compared struct {
		Diff  policyDiff `json:"diff"`
		Moved policyDiff `json:"moved"`
	}
	if err := v.get(path+"/diff", nil, &compared); err != nil {
		return err
	}
	changes, err := compared.Diff.changes()
	if err != nil {
		return err
	}
	moved, err := compared.Moved.changes()
	if err != nil {
		return err
	}
	return v.render("operator_candidate", report.Candidate.Name, map[string]any{
		"Report": &report, "Changes": changes, "Moved": moved, "Filters": filters,
	})
}
