package webhook

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/events"
)

// Types returns the types of events that webhooks may subscribe to.
func Types() []events.Type {
	return slices.DeleteFunc(events.Types(), func(t events.Type) bool { return t == events.WebhookTest })
}

// Wants reports whether a subscription of an org, or with org "" of all events, to some types gets an event; no types:
// all that it may read.
func Wants(org string, types []string, e *events.Event) bool {
	if org != "" && (e.Tenant != org || readable[e.Type] == nil) {
		return false
	}
	return len(types) == 0 || slices.Contains(types, string(e.Type))
}

// fields selects the fields of an object, by name. The fields of a value that is an object itself are selected by its
// own; nil: the value is taken as it is.
type fields map[string]fields

// readable has the fields of the data of an event that the org may read of which it reports. A type that is not listed
// is for operators.
var readable = map[events.Type]fields{
	events.Denial: names("event", "version", "id", "count", "answers", "first", "last", "mode", "reason", "org",
		"org_kind", "user", "user_kind", "endpoint", "policy", "scope", "limit", "cost", "unit", "retry_after_seconds",
		"request_id", "more_request_ids", "mixed", "truncated"),
	events.PolicyUpdated: {
		"version": nil, "policy_version": nil, "kind": nil, "operation": nil, "key": nil, "org": nil,
		"before": changed, "after": changed,
	},
	events.QuotaThreshold: names("version", "org", "policy", "endpoint", "threshold", "limit", "used", "unit",
		"window_start", "window_end", "period", "time_zone", "exhausted_at", "late"),
	events.WebhookDisabled: names("version", "webhook", "org", "url", "reason", "failing_since"),
}

// changed selects the fields of a row that its org reads by the REST API: not why it is there, nor who made it.
var changed = names("id", "name", "tenant", "tier", "time_zone", "scope", "endpoint", "limit", "unit", "match",
	"window_size", "period", "anchor", "max_duration", "algorithm", "burst", "soft_threshold_pct", "hard_threshold_pct",
	"soft_only", "mode", "cost", "description", "public_note", "kind", "user", "credential", "ip", "policy", "factor",
	"amount", "starts_at", "expires_at", "permanent")

// changedShared selects those of a policy whose limit orgs share: no numbers, and nothing to derive them from.
var changedShared = names("id", "name", "tenant", "tier", "endpoint", "mode", "description", "public_note")

func names(all ...string) fields {
	f := fields{}
	for _, name := range all {
		f[name] = nil
	}
	return f
}

// ForOrg returns an event as the org may read it of which it reports, or an error if its data is no JSON object. No
// number of a limit that orgs share is in it.
func ForOrg(e events.Event) (events.Event, error) {
	selected, err := pick(e.Data, readable[e.Type])
	if err != nil {
		return e, fmt.Errorf("read event %q of %s: %w", e.ID, e.Source, err)
	}
	if e.Type == events.Denial && sharedScopes[string(selected["scope"])] {
		for _, name := range [...]string{"limit", "cost", "unit", "scope"} {
			delete(selected, name)
		}
	}
	for _, name := range [...]string{"before", "after"} {
		row := selected[name]
		if row == nil {
			continue
		}
		if selected[name], err = rowForOrg(row); err != nil {
			return e, fmt.Errorf("read event %q of %s: %w", e.ID, e.Source, err)
		}
	}
	e.Data, err = json.Marshal(selected)
	return e, err
}

// rowForOrg returns a row without its numbers if it is a policy whose limit orgs share.
func rowForOrg(row json.RawMessage) (json.RawMessage, error) {
	var policy struct{ Scope json.RawMessage }
	if err := json.Unmarshal(row, &policy); err != nil || !sharedScopes[string(policy.Scope)] {
		return row, err
	}
	selected, err := pick(row, changedShared)
	if err != nil {
		return nil, err
	}
	return json.Marshal(selected)
}

// sharedScopes has the scopes of limits that orgs share, in JSON.
var sharedScopes = map[string]bool{`"global"`: true, `"endpoint"`: true, `"ip"`: true}

func pick(text json.RawMessage, of fields) (map[string]json.RawMessage, error) {
	var all map[string]json.RawMessage
	if err := json.Unmarshal(text, &all); err != nil {
		return nil, err
	}
	for name, value := range all {
		inner, selected := of[name]
		switch {
		case !selected:
			delete(all, name)
		case inner != nil && string(value) != "null":
			picked, err := pick(value, inner)
			if err != nil {
				return nil, err
			}
			if all[name], err = json.Marshal(picked); err != nil {
				return nil, err
			}
		}
	}
	return all, nil
}
