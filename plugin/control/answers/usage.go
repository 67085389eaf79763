package answers

import (
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

// UsageExport is a page of what orgs used.
type UsageExport struct {
	Items       []rows.UsageExportRow `json:"items"`
	ClosedUntil time.Time             `json:"closed_until"          doc:"The midnight before which all days are closed."`
	NextCursor  string                `json:"next_cursor,omitempty" doc:"Absent: this is the last page."`
}

// QuotaNotices lists notices of quotas.
type QuotaNotices struct {
	Items []rows.QuotaNotice `json:"items"`
}

// NearLimits has the orgs that have used most of a limit.
type NearLimits struct {
	Above float64     `json:"above"`
	Since time.Time   `json:"since"                    doc:"The begin of the time that was looked at."`
	Rules int64       `json:"policy_version,omitempty" doc:"The version of the database's policies that is in force; absent: there are none."`
	Items []NearLimit `json:"items"                    doc:"The largest fraction is first."`
}

// NearLimit is a limit that an org has used most of.
type NearLimit struct {
	Org       string    `json:"org_id"`
	Policy    string    `json:"policy"              doc:"The name of the policy."`
	Row       int64     `json:"policy_id,omitempty" doc:"The id of the policy in the database; absent: it is in the plugin's config."`
	Tier      string    `json:"tier,omitempty"      doc:"The tier whose list in the plugin's config has the policy."`
	Endpoint  string    `json:"endpoint"            doc:"Where the least was left: a policy's pattern, or a route's name; empty: none."`
	Scope     string    `json:"scope"               example:"tenant"`
	Mode      string    `json:"mode"                enum:"enforce,shadow,log"`
	Limit     int64     `json:"limit"               doc:"Tokens, as in X-RateLimit-Limit, in force now."`
	Remaining int64     `json:"remaining_min"       doc:"The least that was left, in tokens."`
	Fraction  float64   `json:"fraction"            doc:"1 − remaining_min ÷ limit."`
	At        time.Time `json:"at"                  doc:"The last minute in which the limit was counted there."`
}

// BucketUsage is the current state of a bucket.
type BucketUsage struct {
	Policy   string `json:"policy"              doc:"The name of the policy."                                                                                                                                                             example:"daily"`
	Row      int64  `json:"policy_id,omitempty" doc:"The id of the policy in the database; absent: it is in the plugin's config."`
	Tier     string `json:"tier,omitempty"      doc:"The tier whose list in the plugin's config has the policy. Requests of an org with several tiers spend from one bucket under the limit of each."`
	Of       string `json:"of"                  doc:"What the bucket belongs to: the org, a user, a credential or an address. That of an address's /24 or /48 is listed beside its own where nodes count by it, and others may share it." example:"user u_42"`
	Endpoint string `json:"endpoint,omitempty"  doc:"The endpoint that is counted; absent: all endpoints without a limit of their own of this name."`
	Scope    string `json:"scope"                                                                                                                                                                                                         example:"tenant"`

	Description string `json:"description" doc:"The limit in words."                                                               example:"1000 per 60 s (token_bucket) per tenant"`
	Limit       int64  `json:"limit"       doc:"Tokens, as in X-RateLimit-Limit: the burst of a bucket, the quantity of a window."`
	WindowSize  int64  `json:"window_size" doc:"Seconds."`
	Used        int64  `json:"used"        doc:"Tokens."`
	Remaining   int64  `json:"remaining"   doc:"Tokens that can be spent at once."`

	Fraction   float64   `json:"fraction"              doc:"Used ÷ limit; above 1 where a hard threshold above 100 % allows it."`
	Reset      time.Time `json:"reset"                 doc:"When the bucket is full again, or the window ends."`
	ResetAfter int64     `json:"reset_after"           doc:"The same in seconds from now, rounded up."`
	Mode       string    `json:"mode"                                                                                                                                                                                 enum:"enforce,shadow,log"`
	PublicNote string    `json:"public_note,omitempty" doc:"The note about the policy for the org."`
	MayLease   bool      `json:"may_lease"             doc:"Nodes may have taken tokens ahead of need: of the tokens shown as used, up to the nodes' lease share of the limit (2 % by default) may not be spent yet."`
}

// Usage has the current usage of an org.
type Usage struct {
	Org       string `json:"org_id"`
	Namespace string `json:"namespace"`
	OrgTier
	Version int64         `json:"policy_version,omitempty" doc:"The version of the database's policies that is in force; absent: there are none."`
	Items   []BucketUsage `json:"items"`
}
