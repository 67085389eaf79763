package api

import (
	"fmt"
	"strings"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
)

func (w *inForceReport) summarize() {
	text := fmt.Sprintf("%s is of tier %s (%s)", w.Org, w.Tier, tierText(w.OrgTier))
	if w.Pool != "" {
		text += ", in the Redis pool " + w.Pool
	}
	switch {
	case w.verdict != verdictLimited:
		text += "; " + w.verdict
	case len(w.Limits) == 0:
		text += "; no limit applies"
	case len(w.Limits)+w.leftOff.Limits == 1:
		text += "; 1 limit applies"
	default:
		text += fmt.Sprintf("; %d limits apply", len(w.Limits)+w.leftOff.Limits)
	}
	if w.leftOff != (answers.Truncated{}) {
		w.Truncated = &w.leftOff
		text += "; lists are cut off"
	}
	w.Summary = text + "."
}

// verdictLimited is the verdict on requests that limits decide.
const verdictLimited = "limited"

// verdictText returns the verdict on requests before limits are checked, or verdictLimited.
func verdictText(r *resolve.Resolution) string {
	switch {
	case r.Banned && r.Until > 0:
		return "it is banned until " + timeOf(r.Until).Format(time.RFC3339)
	case r.Banned:
		return "it is banned for good"
	case r.Exempt:
		return "it is exempt from all limits"
	}
	return verdictLimited
}

// overrideText names an override and gives its reason; to the token of an org, its public note.
func (w *inForceReport) overrideText(o policy.Override) string {
	text := fmt.Sprintf("override %d (%s", o.ID, o.Kind)
	switch {
	case !w.view.tenant:
		text += fmt.Sprintf(", by %s: %s", o.Author, o.Reason)
	case o.PublicNote != "":
		text += ": " + o.PublicNote
	}
	if end := o.ExpiresAt; !end.IsZero() {
		return text + ") until " + end.Format(time.RFC3339)
	}
	return text + ") for good"
}

// atEndpoint returns " at " and the endpoint, or "" for all endpoints.
func atEndpoint(endpoint string) string {
	if endpoint == "" {
		return ""
	}
	return " at " + endpoint
}

func sourceText(from origin) string {
	switch {
	case from.row == 0 && from.match == "global":
		return "for all tenants in the plugin's config"
	case from.row == 0:
		return fmt.Sprintf("the default of %s in the plugin's config", from.match)
	case from.match == "tenant":
		return fmt.Sprintf("by policy %d for this org", from.row)
	case from.match == "global":
		return fmt.Sprintf("by policy %d for all requests", from.row)
	case strings.HasPrefix(from.match, "tier "):
		return fmt.Sprintf("by policy %d for %s", from.row, from.match)
	}
	return fmt.Sprintf("by policy %d for this %s", from.row, from.match)
}

func tierText(t answers.OrgTier) string {
	text := ""
	switch t.Source {
	case resolve.TierOfRow:
		return "set for this org"
	case "query":
		return "as claimed in this request; none is set for this org"
	case tierAssumed:
		return "assumed: none is set for this org, and no node has reported a request of it"
	case resolve.TierOfDefault:
		text = "the default: nodes found none in its requests"
	default:
		text = "from " + t.Source
	}
	if !t.SeenAt.IsZero() {
		text += ", seen " + t.SeenAt.Format(time.RFC3339)
	}
	for _, other := range t.Others {
		text += fmt.Sprintf("; other requests: %s (from %s)", other.Tier, other.Source)
	}
	return text
}
