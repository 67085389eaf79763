package portal

import (
	"cmp"
	"net/url"
	"slices"
	"strings"
	"time"
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
	return []page{
		{Pattern: "GET " + orgHome, For: tenants, Nav: "Plan", Serve: serveOrg},
		{Pattern: "GET " + orgUsagePath, For: tenants, Nav: "Usage", Serve: serveOrgUsage},
		{Pattern: "GET " + orgDenialsPath, For: tenants, Nav: "Denials", Serve: serveOrgDenials},
		{Pattern: "GET " + orgWebhooksPath, For: tenants, Nav: "Webhooks", Serve: serveOrgWebhooks},
		{Pattern: "POST " + orgWebhooksPath, For: tenants, Serve: createOrgWebhook},
		{Pattern: "GET " + orgWebhooksPath + "/{id}", For: tenants, Serve: serveOrgWebhook},
		{Pattern: "POST " + orgWebhooksPath + "/{id}/{action}", For: tenants, Serve: changeOrgWebhook},
		{Pattern: "GET " + orgTokensPath, For: tenants, Nav: "Tokens", Serve: serveOrgTokens},
		{Pattern: "POST " + orgTokensPath, For: tenants, Serve: createOrgToken},
		{Pattern: "POST " + orgTokensPath + "/{name}/{action}", For: tenants, Serve: changeOrgToken},
	}
}

// tenantTopics returns the live parts of the pages of tenants. Each is of the org of the caller and no other.
func tenantTopics() []topic {
	return []topic{
		live("org-plan", tenants, "tenant_plan_rows", readOrgPlan),
		live("org-usage", tenants, "tenant_usage_rows", readOrgUsage),
		live("org-denials", tenants, "tenant_denials_rows", readOrgDenials),
	}
}

// liveURL returns the address of a live part with the values of its query, without empty ones.
func liveURL(topic string, query url.Values) string {
	kept := url.Values{}
	for name, values := range query {
		if value := strings.Join(values, ""); value != "" {
			kept.Set(name, value)
		}
	}
	return livePath + topic + "?" + kept.Encode()
}

// orgPath returns a path of the API below the caller's org.
func (v *visit) orgPath(below string) string { return orgAPI(v.caller.Org, below) }

// pathSegment returns a name as one segment of a path. It escapes dot segments too, which would lead elsewhere.
func pathSegment(name string) string {
	if name == "." || name == ".." {
		return strings.ReplaceAll(name, ".", "%2E")
	}
	return url.PathEscape(name)
}

// orgTier is what the API shows of the tier of an org.
type orgTier struct {
	Tier       string    `json:"tier"`
	TierSource string    `json:"tier_source"`
	TierSeenAt time.Time `json:"tier_seen_at"`
	OtherTiers []struct {
		Tier       string `json:"tier"`
		TierSource string `json:"tier_source"`
	} `json:"other_tiers"`
}

// TierAssumed reports whether the tier is the default because no node has seen the org.
func (t orgTier) TierAssumed() bool { return t.TierSource == "assumed" }

// orgInForce is what the API shows of the limits in force. Summaries, authors and reasons are for operators only.
type orgInForce struct {
	At time.Time `json:"at"`
	orgTier
	Limits     []orgLimit     `json:"limits"`
	Exceptions []orgException `json:"exceptions"`
	NotInForce []struct {
		Policy   string `json:"policy"`
		Endpoint string `json:"endpoint"`
		Limit    string `json:"limit"`
		Why      string `json:"why"`
	} `json:"not_in_force"`
	Overrides []orgOverride `json:"overrides"`
	Truncated *struct{}     `json:"truncated"`
}

// orgLimit is a limit in force.
type orgLimit struct {
	limitFacts
	Policy     string    `json:"policy"`
	Row        int64     `json:"policy_id"`
	Tier       string    `json:"tier"` // whose list in the config has it
	Mode       string    `json:"mode"`
	Summary    string    `json:"summary"` // where it comes from
	Until      time.Time `json:"until"`
	PublicNote string    `json:"public_note"`
}

// isWide reports whether the limit counts all requests of the org together, or all of one endpoint, and denies.
func (l *orgLimit) isWide() bool {
	return l.Mode == "enforce" && (l.Scope == "tenant" || l.Scope == "tenant+endpoint")
}

// counts reports whether a bucket is of the limit. One per endpoint without a pattern has a bucket for each.
func (l *orgLimit) counts(b *orgBucket) bool {
	perEndpoint := l.Endpoint == "" && strings.HasSuffix(l.Scope, "+endpoint")
	return b.Policy == l.Policy && b.Row == l.Row && b.Tier == l.Tier && b.Scope == l.Scope &&
		(perEndpoint || b.Endpoint == l.Endpoint)
}

// orgException is a ban or an exemption.
type orgException struct {
	Verdict    string    `json:"verdict"`
	Summary    string    `json:"summary"`
	Endpoint   string    `json:"endpoint"`
	Until      time.Time `json:"until"`
	PublicNote string    `json:"public_note"`
}

// orgOverride is an override of the org's requests.
type orgOverride struct {
	ID         int64     `json:"id"`
	Kind       string    `json:"kind"`
	Target     string    `json:"target"`
	Endpoint   string    `json:"endpoint"`
	From       time.Time `json:"from"`
	Until      time.Time `json:"until"`
	PublicNote string    `json:"public_note"`
	Reason     string    `json:"reason"`
	Author     string    `json:"author"`
	Applied    bool      `json:"applied"`
	Why        string    `json:"why"`     // it is applied, or not
	General    bool      `json:"general"` // it is of all tenants
}

// Words returns what the override does, in words.
func (o *orgOverride) Words() string {
	what, ok := map[string]string{
		"custom_limit": "Another limit", "multiplier": "More or less of each limit", "ban": "No requests",
		"exempt": "No limits",
	}[o.Kind]
	if !ok {
		what = o.Kind
	}
	if o.Target != "tenant" {
		what += " for one " + o.Target
	}
	if o.Endpoint != "" {
		what += " at " + o.Endpoint
	}
	return what
}

// orgBucket is what is used of a limit now.
type orgBucket struct {
	Policy    string    `json:"policy"`
	Row       int64     `json:"policy_id"`
	Tier      string    `json:"tier"`
	Of        string    `json:"of"`
	Endpoint  string    `json:"endpoint"`
	Limit     int64     `json:"limit"`
	Used      int64     `json:"used"`
	Remaining int64     `json:"remaining"`
	Fraction  float64   `json:"fraction"`
	Reset     time.Time `json:"reset"`
	Scope     string    `json:"scope"`
}

// Level returns how near the limit is, as a class of badges.
func (b *orgBucket) Level() string { return usageLevel(b.Fraction) }

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

// planLimit is a limit with what is used of it.
type planLimit struct {
	orgLimit
	Words string
	Used  []orgBucket // of the org, and of the user whose usage is shown
}

// orgPlan is the page of the plan.
type orgPlan struct {
	Org, User string
	Live      string // the address of the live part
	InForce   orgInForce
	TimeZone  string
	Limits    []planLimit
	Agreed    []orgOverride
	NoUsage   bool // what is used cannot be read
}

// serveOrg serves the plan of an org: its limits in words, and what is used of them now.
func serveOrg(v *visit) error {
	data, err := readOrgPlan(v)
	if err != nil {
		return err
	}
	return v.render("tenant_plan", "Plan and limits", data)
}

func readOrgPlan(v *visit) (*orgPlan, error) {
	data := &orgPlan{Org: v.caller.Org, User: strings.TrimSpace(v.r.FormValue("user"))}
	data.Live = liveURL("org-plan", url.Values{"user": {data.User}})
	inForce, err := v.orgLimits(data.User)
	if err != nil {
		return nil, err
	}
	data.InForce = inForce
	var org struct {
		TimeZone string `json:"time_zone"`
	}
	if err := v.get(v.orgPath(""), nil, &org); err != nil && !isStatus(err, 404) {
		return nil, err
	}
	data.TimeZone = cmp.Or(org.TimeZone, "UTC")
	buckets, err := v.orgBuckets(data.User)
	if data.NoUsage = isStatus(err, 503); err != nil && !data.NoUsage {
		return nil, err
	}
	data.Limits = planLimits(inForce.Limits, buckets)
	data.Agreed = slices.DeleteFunc(slices.Clone(inForce.Overrides), func(o orgOverride) bool { return !o.Applied })
	return data, nil
}

// orgLimits reads the limits in force for the org, and for one of its users; "": for none.
func (v *visit) orgLimits(user string) (found orgInForce, err error) {
	query := url.Values{}
	if user != "" {
		query.Set("user", user)
	}
	return found, v.get(v.orgPath("/ratelimit/policies"), query, &found)
}

// orgBuckets reads what is used of the limits now.
func (v *visit) orgBuckets(user string) ([]orgBucket, error) {
	query := url.Values{}
	if user != "" {
		query.Set("user", user)
	}
	var found struct{ Items []orgBucket }
	err := v.get(v.orgPath("/ratelimit/usage"), query, &found)
	return found.Items, err
}

// planLimits returns limits in words, each with its buckets.
func planLimits(limits []orgLimit, buckets []orgBucket) []planLimit {
	plan := make([]planLimit, len(limits))
	for i, l := range limits {
		p := planLimit{orgLimit: l, Words: limitWords(l.limitFacts, "")}
		for _, b := range buckets {
			if l.counts(&b) {
				p.Used = append(p.Used, b)
			}
		}
		plan[i] = p
	}
	return plan
}
