package rows

import (
	"fmt"
	"strings"
	"time"
)

// WouldAdmit returns what would have admitted a request that d denied, as far as its fields tell; "" if they tell
// nothing. Where several limits deny a request, all must admit it.
func (d *RecentDenial) WouldAdmit() string {
	switch {
	case d.Shadow:
		return "Nothing is needed: the request was admitted. It will be denied when the limit is enforced."
	case d.Reason == "quota" || d.Reason == "fair_share":
		return sentence(d.limitWouldAdmit())
	case d.Reason == "banned" && d.RetryAfter != nil:
		return sentence([]string{d.retry(), "an earlier end of the ban" + d.overrideText()})
	case d.Reason == "banned":
		return sentence([]string{"the end of the ban" + d.overrideText() + ", since waiting does not help"})
	}
	return waysAdmit[d.Reason]
}

// waysAdmit is what would admit a request that no limit denied, by reason.
var waysAdmit = map[string]string{
	"tenant_missing":  "A request that names its tenant where the config's tenant_from reads it.",
	"user_missing":    "A request that names its user where the config's user_from reads it.",
	"header_repeated": "A request that sends each header with the name of its tenant or user once.",
	"meta_limited":    "A retry after Retry-After, with fewer requests of the tenant at once: meta_limit protects the node.",
	"store_away":      "A retry after Retry-After, when the limit can be checked again; or fail_mode open or local.",
}

// limitWouldAdmit returns each of the ways by which the limit would have admitted the request.
func (d *RecentDenial) limitWouldAdmit() (ways []string) {
	switch {
	case d.RetryAfter != nil:
		ways = append(ways, d.retry()+" if nothing else is spent until then")
	case d.Limit == nil || d.Reason == "fair_share":
		ways = append(ways, "a retry after Retry-After")
	case d.Capacity != nil:
		ways = append(ways, fmt.Sprintf("a cost of at most %d, which is all that the limit holds: no wait helps", *d.Capacity))
	default:
		ways = append(ways, "a retry after Retry-After; without that header no wait helps")
	}
	if d.Remaining != nil && *d.Remaining > 0 && d.RetryAfter != nil {
		ways = append(ways, fmt.Sprintf("a cost of at most %d, which was left", *d.Remaining))
	}
	if d.Penalty != nil {
		ways = append(ways, fmt.Sprintf("the end of penalty %d, which lowers the limit", *d.Penalty))
	}
	switch {
	case d.Reason == "fair_share":
		return append(ways, "less demand of other tenants", "a larger weight of the tenant in the limit's shares")
	case d.PolicyID != nil:
		return append(ways, fmt.Sprintf("a larger limit, by policy %d or an override", *d.PolicyID))
	}
	return append(ways, "a larger limit, by the config or an override")
}

// RetryAt returns the first whole second at which a retry can be admitted, or nil: unknown, or no wait helps.
func (d *RecentDenial) RetryAt() *time.Time {
	if d.RetryAfter == nil {
		return nil
	}
	at := d.At.Add(time.Duration(*d.RetryAfter)*time.Second + time.Second - 1).Truncate(time.Second).UTC()
	return &at
}

// retry returns when a retry would have been admitted.
func (d *RecentDenial) retry() string { return "a retry at " + d.RetryAt().Format(time.RFC3339) }

// overrideText names the override, to go behind what it does.
func (d *RecentDenial) overrideText() string {
	if d.Override == nil {
		return ""
	}
	return fmt.Sprint(" by override ", *d.Override)
}

// sentence joins alternatives.
func sentence(ways []string) string {
	text := strings.Join(ways, "; or ")
	return strings.ToUpper(text[:1]) + text[1:] + "."
}
