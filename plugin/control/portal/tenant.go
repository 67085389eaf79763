package portal

import (
	"cmp"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
)

// Paths of the pages of tenants.
const (
	orgHome         = "/portal/org"
	orgUsagePath    = orgHome + "/usage"
	orgDenialsPath  = orgHome + "/denials"
	orgWebhooksPath = orgHome + "/webhooks"
	orgTokensPath   = orgHome + "/tokens"
)

// tenantPages returns the pages of tenants. Each shows the org of the caller and no other.
func tenantPages() []page {
	return append([]page{
		{
			Pattern: "GET " + orgHome, For: tenants, Nav: "Plan", Live: true,
			Serve: pageOf("tenant_plan", "Plan and limits", readOrgPlan),
		},
		{
			Pattern: "GET " + orgUsagePath, For: tenants, Nav: "Usage", Live: true,
			Serve: pageOf("tenant_usage", "Usage", readOrgUsage),
		},
		{
			Pattern: "GET " + orgDenialsPath, For: tenants, Nav: "Denials", Live: true,
			Serve: pageOf("tenant_denials", "Denials", readOrgDenials),
		},
		{Pattern: "GET " + orgWebhooksPath, For: tenants, Nav: "Webhooks", Serve: showOrgWebhooks},
		{Pattern: "GET " + orgWebhooksPath + "/{id}", For: tenants, Serve: showOrgWebhook},
		{Pattern: "GET " + orgTokensPath, For: tenants, Nav: "Tokens", Serve: showOrgTokens},
	}, pagesOf(ownActions, tenants)...)
}

// orgPath returns a path of the API below the caller's org.
func (v *visit) orgPath(below string) string { return orgAPI(v.caller.Org, below) }

// isWide reports whether the limit counts all requests of the org together, or all of one endpoint, and denies.
func isWide(l *answers.LimitInForce) bool {
	return l.Mode == "enforce" && (l.Scope == "tenant" || l.Scope == "tenant+endpoint")
}

// counts reports whether a bucket is of the limit. One per endpoint without a pattern has a bucket for each.
func counts(l *answers.LimitInForce, b *answers.BucketUsage) bool {
	perEndpoint := l.Endpoint == "" && strings.HasSuffix(l.Scope, "+endpoint")
	return b.Policy == l.Policy && b.Row == l.Row && b.Tier == l.Tier && b.Scope == l.Scope &&
		(perEndpoint || b.Endpoint == l.Endpoint)
}

// overrideWords returns what an override does, in words: "1.5 × each limit".
func overrideWords(o answers.OverrideInForce) string {
	policy := cmp.Or(o.Policy, "each limit")
	what := o.Kind
	switch o.Kind {
	case "custom_limit":
		what = policy + " " + amountWords(o.Limit, o.Unit)
		if o.WindowSize != 0 {
			what += " per " + windowWords(o.WindowSize)
		}
		if o.Burst != 0 {
			what += ", at most " + amountWords(o.Burst, o.Unit) + " at once"
		}
	case "multiplier":
		what = fmt.Sprint(policy, " × ", o.Factor)
	case "topup":
		what = "+" + amountWords(o.Amount, o.Unit) + " " + policy
	case "ban":
		what = "No requests"
	case "exempt":
		what = "No limits"
	}
	if o.Target != "tenant" {
		what += " for one " + o.Target
	}
	if o.Endpoint != "" {
		what += " at " + o.Endpoint
	}
	return what
}

// usageLevel returns how near a limit is, as a class of badges.
func usageLevel(fraction float64) string {
	const near, full = 0.8, 1
	switch {
	case fraction >= full:
		return "bad"
	case fraction >= near:
		return "warn"
	}
	return "ok"
}

type planLimit struct {
	answers.LimitInForce
	Words string
	Used  []orgQuota // of the org, and of the user whose usage is shown
}

// readOrgPlan reads the plan of an org: its limits in words, and what is used of them now, unless that cannot be read.
func readOrgPlan(v *visit) (map[string]any, error) {
	user := v.filters("user")
	inForce, err := v.orgLimits(user)
	if err != nil {
		return nil, err
	}
	var org answers.Tenant
	if err := v.get(v.orgPath(""), nil, &org); err != nil && !isStatus(err, 404) {
		return nil, err
	}
	buckets, err := v.orgBuckets(user)
	noUsage := isStatus(err, 503)
	if err != nil && !noUsage {
		return nil, err
	}
	now := v.portal.Now()
	lately, err := v.historyByEndpoint(now.Add(-time.Hour), "1h")
	if _, err := unavailable(err); err != nil {
		return nil, err
	}
	unapplied := func(o answers.OverrideInForce) bool { return !o.Applied }
	return map[string]any{
		"Org": v.caller.Org, "User": user.Get("user"), "TimeZone": cmp.Or(org.TimeZone, "UTC"), "InForce": inForce,
		"Limits": planLimits(inForce.Limits, buckets, &lately, now), "NoUsage": noUsage,
		"Agreed": slices.DeleteFunc(slices.Clone(inForce.Overrides), unapplied),
	}, nil
}

// orgLimits reads the limits in force for the org, and for the user in a query.
func (v *visit) orgLimits(user url.Values) (found answers.InForce, err error) {
	return found, v.get(v.orgPath("/ratelimit/policies"), user, &found)
}

// orgBuckets reads what is used of these limits now.
func (v *visit) orgBuckets(user url.Values) ([]answers.BucketUsage, error) {
	var found answers.Usage
	err := v.get(v.orgPath("/ratelimit/usage"), user, &found)
	return found.Items, err
}

// planLimits returns limits in words, each with its buckets and their forecasts, given the requests of about the last
// hour.
func planLimits(
	limits []answers.LimitInForce, buckets []answers.BucketUsage, lately *answers.UsageHistory, now time.Time,
) []planLimit {
	plan := make([]planLimit, len(limits))
	for i, l := range limits {
		p := planLimit{LimitInForce: l, Words: limitWords(&l, "")}
		for _, b := range buckets {
			if counts(&l, &b) {
				p.Used = append(p.Used, quotaOf(&p, &b, limits, lately, now))
			}
		}
		plan[i] = p
	}
	return plan
}
