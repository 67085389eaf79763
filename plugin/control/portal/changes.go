package portal

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"html/template"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
)

// fieldChange is a field that two JSON values have different.
type fieldChange struct {
	Path          string // of the field: limit, settle.reserve
	Before, After string // as JSON, texts without quotes; "" if absent
	Mark          string // added, removed or changed
}

// diffJSON returns the fields that differ between two JSON values, ordered by path. A value that is empty or null has
// no fields.
func diffJSON(before, after json.RawMessage) ([]fieldChange, error) {
	was, err := flatten(before)
	if err != nil {
		return nil, fmt.Errorf("read the state before: %w", err)
	}
	is, err := flatten(after)
	if err != nil {
		return nil, fmt.Errorf("read the state after: %w", err)
	}
	all := maps.Clone(was)
	maps.Copy(all, is)
	var changes []fieldChange
	for _, path := range slices.Sorted(maps.Keys(all)) {
		old, had := was[path]
		now, has := is[path]
		switch {
		case !had:
			changes = append(changes, fieldChange{path, "", now, "added"})
		case !has:
			changes = append(changes, fieldChange{path, old, "", "removed"})
		case now != old:
			changes = append(changes, fieldChange{path, old, now, "changed"})
		}
	}
	return changes, nil
}

// unedited are fields of rows that change by themselves, or never, and are not shown.
var unedited = []string{
	"id", revision, "created_at", "created_by", "last_used_at", "waiting", "dropped", "delivered_at", "failures",
	"failing_since", "last_error", "rotated_until",
}

// diffRows is diffJSON of what operators edit.
func diffRows(before, after json.RawMessage) ([]fieldChange, error) {
	changes, err := diffJSON(before, after)
	return slices.DeleteFunc(changes, func(c fieldChange) bool { return slices.Contains(unedited, c.Path) }), err
}

// diffValues returns the fields that differ between two values as JSON has them.
func diffValues(before, after any) ([]fieldChange, error) {
	was, errWas := json.Marshal(before)
	is, errIs := json.Marshal(after)
	if err := cmp.Or(errWas, errIs); err != nil {
		return nil, fmt.Errorf("compare two states: %w", err)
	}
	return diffJSON(was, is)
}

// flatten returns the leaves of a JSON value by path.
func flatten(raw json.RawMessage) (map[string]string, error) {
	leaves := map[string]string{}
	if len(raw) == 0 {
		return leaves, nil
	}
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber() // an id may have more digits than a float64
	var value any
	if err := decoder.Decode(&value); err != nil {
		return nil, err
	}
	addLeaves(leaves, "", value)
	return leaves, nil
}

// addLeaves adds the leaves of a value at a path. Null is no leaf, and a list is one.
func addLeaves(leaves map[string]string, path string, value any) {
	switch v := value.(type) {
	case nil:
	case map[string]any:
		for name, field := range v {
			addLeaves(leaves, strings.TrimPrefix(path+"."+name, "."), field)
		}
	case string:
		leaves[path] = v
	default: // a number, a boolean or a list
		text, _ := json.Marshal(v) // it was decoded from JSON
		leaves[path] = string(text)
	}
}

var auditFilters = []string{"tenant", "kind", "key", "actor"}

// serveAudit shows changes, newest first, each with the fields that it changed.
func serveAudit(v *visit) error {
	filters := v.filters(auditFilters...)
	var found answers.Page[answers.AuditEntry]
	if err := v.get("/v1/ratelimit/audit", v.withPage(filters), &found); err != nil {
		return err
	}
	return v.render("operator_audit", "Audit", map[string]any{
		"Filters": filters, "Items": found.Items, "Next": nextPage(v.r.URL.Path, filters, found.NextCursor),
	})
}

// serveCandidates lists the candidates, the newest first.
func serveCandidates(v *visit) error {
	var found answers.CandidateList
	if err := v.get("/v1/ratelimit/candidates", nil, &found); err != nil {
		return err
	}
	const most = 100
	more := max(0, len(found.Items)-most)
	return v.render("operator_candidates", "Rollout", map[string]any{
		"Items": found.Items[:len(found.Items)-more], "More": more, "CanWrite": v.isAdmin(),
	})
}

// policyChange is a policy that a candidate creates, updates or deletes.
type policyChange struct {
	Title   string
	Changes []fieldChange
	Key     template.URL // of the policy, as a query
}

const maxPolicyChanges = 100

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
			list = append(list, policyChange{title, changes, keyQuery(of)})
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
	data := map[string]any{
		"Report": &report, "Changes": changes, "Moved": moved, "Filters": filters, "Version": compared.Version,
		"Candidate": compared.Candidate, "CanWrite": v.isAdmin(),
	}
	if compared.Candidate.State == "open" && v.isAdmin() {
		var policies answers.Page[answers.Policy]
		if err := v.get(policiesAPI, url.Values{"limit": {"200"}}, &policies); err != nil {
			return err
		}
		data["Policies"] = policies.Items
	}
	return v.render("operator_candidate", report.Candidate.Name, data)
}
