package control

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/pgstore"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// policyBody is a policy as a caller writes it. Its fields are those of the plugin's config; some have a second spelling.
type policyBody struct {
	ID       int64 `json:"id,omitempty" doc:"As returned by a read; a write ignores it." example:"7"`
	Revision int64 `json:"revision,omitempty" doc:"As returned by a read; a write ignores it and uses If-Match." example:"3"`

	Namespace string `json:"namespace,omitempty" maxLength:"64" pattern:"^[A-Za-z0-9_.-]*$" doc:"The namespace of the plugin configs that it applies to. Default: default."`
	Name      string `json:"name,omitempty" maxLength:"64" pattern:"^[A-Za-z0-9_.-]*$" doc:"Policies of different names all apply; of those of one name the most specific does. Default: made from the tier or the tenant and the endpoint." example:"daily"`
	Tier      string `json:"tier,omitempty" maxLength:"64" doc:"The tier whose tenants it applies to. Give either tier or tenant." example:"enterprise"`
	OrgTier   string `json:"orgTier,omitempty" maxLength:"64" doc:"Another spelling of tier; converted to lower case." example:"Enterprise"`
	Tenant    string `json:"tenant,omitempty" maxLength:"128" doc:"The tenant that it applies to. Give either tenant or tier." example:"acme"`
	Org       string `json:"org,omitempty" maxLength:"128" doc:"Another spelling of tenant." example:"acme"`
	OrgID     string `json:"orgId,omitempty" maxLength:"128" doc:"Another spelling of tenant." example:"acme"`
	Endpoint  string `json:"endpoint,omitempty" maxLength:"1024" doc:"The requests that it covers, as METHOD /pattern; {param} and a final * are wildcards. Default: all." example:"POST /records"`
	Pattern   string `json:"endpointPattern,omitempty" maxLength:"1024" doc:"Another spelling of endpoint." example:"POST /records"`
	Slot      string `json:"slot,omitempty" doc:"active, as returned by a read. Default: active." example:"active"`

	Scope      string `json:"scope,omitempty" enum:"tenant,user,credential,ip,endpoint,global,tenant+endpoint,user+endpoint" doc:"What the limit is counted per. Default: tenant."`
	Limit      int64  `json:"limit" minimum:"1" maximum:"1000000000000" doc:"Tokens that a window allows." example:"1000"`
	WindowSize int64  `json:"window_size,omitempty" minimum:"1" maximum:"31622400" doc:"The window in seconds. Give either window_size or window." example:"60"`
	Window     string `json:"window,omitempty" maxLength:"32" doc:"Another spelling of window_size, as a duration: 30s, 1m, 1h, 1d." example:"1m"`
	Algorithm  string `json:"algorithm,omitempty" enum:"token_bucket,leaky_bucket,fixed_window,sliding_window,sliding_log" doc:"Default: token_bucket."`
	Burst      int64  `json:"burst,omitempty" minimum:"1" maximum:"1000000000000" doc:"The capacity of a bucket in tokens. Default: the limit, or 1 for leaky_bucket."`

	SoftThresholdPct int64 `json:"soft_threshold_pct,omitempty" minimum:"1" maximum:"1000" doc:"Usage in percent above which responses carry a warning. Default: none."`
	HardThresholdPct int64 `json:"hard_threshold_pct,omitempty" minimum:"100" maximum:"1000" doc:"Usage in percent above which requests are denied. Default: 100."`
	SoftOnly         bool  `json:"soft_only,omitempty" doc:"Warn, and never deny."`

	Mode        string `json:"mode,omitempty" enum:"enforce,shadow,log" doc:"Default: that of the plugin config."`
	Cost        *int64 `json:"cost,omitempty" minimum:"0" maximum:"1000000000" doc:"Tokens that a request costs in this policy. Default: the cost of the request."`
	FailMode    string `json:"fail_mode,omitempty" enum:"open,closed,local" doc:"What it does while Redis is away. Default: that of the plugin config."`
	FailureMode string `json:"failMode,omitempty" enum:"open,closed,local" doc:"Another spelling of fail_mode."`
	Accuracy    string `json:"accuracy,omitempty" enum:"leased,exact" doc:"Default: that of the plugin config."`

	PublicNote string `json:"public_note,omitempty" maxLength:"1024" doc:"The note that the tenant sees. Default: nothing." example:"Agreed until the end of the year."`

	Reason string `json:"reason,omitempty" maxLength:"1024" doc:"Why; recorded in the audit and not shown to tenants. Default: changed by the API."`
}

// Resolve is huma's: it tells all that is wrong with the values, beside what the schema has told.
func (b *policyBody) Resolve(huma.Context) []error {
	var faults []error
	twice := func(one, other, spelling, field string) {
		if one != "" && other != "" {
			faults = append(faults, fault("body."+spelling, otherSpelling(field), other))
		}
	}
	twice(b.Tier, b.OrgTier, "orgTier", "tier")
	twice(b.Tenant, b.OrgID, "orgId", "tenant")
	if b.Org != b.tenant() {
		twice(b.tenant(), b.Org, "org", "tenant")
	}
	twice(b.Endpoint, b.Pattern, "endpointPattern", "endpoint")
	twice(b.FailMode, b.FailureMode, "failMode", "fail_mode")
	if b.Window != "" {
		if b.WindowSize != 0 {
			faults = append(faults, fault("body.window", otherSpelling("window_size"), b.Window))
		}
		if _, err := windowSeconds(b.WindowSize, b.Window); err != nil {
			faults = append(faults, fault("body.window", err.Error(), b.Window))
		}
	}
	if b.Slot != "" && b.Slot != pgstore.SlotActive {
		faults = append(faults, fault("body.slot", pgstore.NoCandidate, b.Slot))
	}
	if b.Reason != "" {
		if why := checkReason(b.Reason); why != "" {
			faults = append(faults, fault("body.reason", why, nil))
		}
	}
	faults = append(faults, notTexts("body", textField{"tier", b.Tier}, textField{"orgTier", b.OrgTier}, textField{"tenant", b.Tenant},
		textField{"org", b.Org}, textField{"orgId", b.OrgID}, textField{"endpoint", b.Endpoint}, textField{"endpointPattern", b.Pattern})...)
	_, told := policy.NewSnapshot(policy.Rows{Policies: []policy.Row{rowOf(b.policy())}}, nil)
	for _, f := range told {
		faults = append(faults, fault("body."+b.spelled(f.Field), f.Problem, nil))
	}
	return faults
}

// spelled is the name that the caller has given a field.
func (b *policyBody) spelled(field string) string {
	switch {
	case field == "match" && b.Tier+b.OrgTier == "" && b.tenant() == "":
		return "tier"
	case field == "match":
		return b.spelled("tenant")
	case field == "tier" && b.OrgTier != "":
		return "orgTier"
	case field == "tenant" && b.OrgID != "":
		return "orgId"
	case field == "tenant" && b.Tenant == "" && b.Org != "":
		return "org"
	case field == "endpoint" && b.Pattern != "":
		return "endpointPattern"
	case field == "window_size" && b.Window != "":
		return "window"
	case field == "fail_mode" && b.FailureMode != "":
		return "failMode"
	}
	return field
}

// tenant is the tenant, by any of its spellings.
func (b *policyBody) tenant() string { return cmp.Or(b.Tenant, b.OrgID, b.Org) }

// policy is the policy that the body asks for, with the defaults of this API.
func (b *policyBody) policy() pgstore.Policy {
	window, _ := windowSeconds(b.WindowSize, b.Window) // what is wrong with it is told by faults
	p := pgstore.Policy{
		Namespace: b.Namespace, Name: b.Name,
		Tier:     cmp.Or(b.Tier, strings.ToLower(b.OrgTier)),
		Tenant:   b.tenant(),
		Endpoint: cmp.Or(b.Endpoint, b.Pattern),
		Slot:     b.Slot, Scope: cmp.Or(b.Scope, policy.Tenant.String()),
		Limit: b.Limit, WindowSize: window, Algorithm: b.Algorithm, Burst: b.Burst,
		SoftThresholdPct: b.SoftThresholdPct, HardThresholdPct: b.HardThresholdPct, SoftOnly: b.SoftOnly,
		Mode: b.Mode, Cost: b.Cost, FailMode: cmp.Or(b.FailMode, b.FailureMode), Accuracy: b.Accuracy,
		PublicNote: b.PublicNote,
	}
	if p.Name == "" && (p.Tier != "" || p.Tenant != "") {
		p.Name = derivedName(p)
	}
	return p
}

// maxSlug is how much of a derived name is for people, in bytes; the rest tells apart what they would read as one.
const maxSlug = 50

// parameter is a parameter of an endpoint's pattern, whose name means nothing.
var parameter = regexp.MustCompile(`\{[^}]*\}`)

// derivedName is the name of a policy that was given none: always the same for the same tier or tenant and endpoint, and
// another for others.
func derivedName(p pgstore.Policy) string {
	endpoint := parameter.ReplaceAllString(p.Endpoint, "{}")
	var slug strings.Builder
	for _, c := range []byte(strings.ToLower(cmp.Or(p.Tier, p.Tenant) + " " + endpoint)) {
		switch {
		case slug.Len() == maxSlug:
		case c >= 'a' && c <= 'z', c >= '0' && c <= '9', c == '_', c == '.':
			slug.WriteByte(c)
		case slug.Len() > 0 && !strings.HasSuffix(slug.String(), "-"):
			slug.WriteByte('-')
		}
	}
	name := strings.Trim(slug.String(), "-")
	if name == p.Tier {
		return name
	}
	sum := sha256.Sum256([]byte(p.Tier + "\x00" + p.Tenant + "\x00" + endpoint))
	return strings.TrimPrefix(name+"-"+hex.EncodeToString(sum[:4]), "-")
}

// rowOf is a policy as package policy compiles it.
func rowOf(p pgstore.Policy) policy.Row {
	return policy.Row{ID: p.ID, Namespace: p.Namespace, Tier: p.Tier, Tenant: p.Tenant, PublicNote: p.PublicNote, Limit: schema.Limit{
		Name: p.Name, Scope: p.Scope, Endpoint: p.Endpoint, Limit: p.Limit, WindowSize: p.WindowSize, Algorithm: p.Algorithm,
		Burst: p.Burst, SoftThresholdPct: p.SoftThresholdPct, HardThresholdPct: p.HardThresholdPct, SoftOnly: p.SoftOnly,
		Mode: p.Mode, Cost: p.Cost, FailMode: p.FailMode, Accuracy: p.Accuracy,
	}}
}
