// Package answers has the answers of the REST API as types, which the API encodes, and the portal and the ratelimit
// command decode, and the [Client] by which these call the API. Answers that are rows of the database have the types of
// package rows.
package answers

import (
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/store"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// Fleet has the current version and what each node enforces.
type Fleet struct {
	rows.Fleet
	rows.Reach

	DecisionP99 float64 `json:"decision_p99_ms,omitempty" doc:"The milliseconds that 99 % of the decisions of live nodes did not exceed in about the last minute. Absent: there were none."`
}

// Warnings are about parts of a write that may be mistakes, and about nodes that could not be read after it.
type Warnings struct {
	Warnings []string `json:"warnings,omitempty" doc:"The write has succeeded. Likely mistakes: an override of a tenant that was never seen, the name of a tier or a policy that neither the plugin's config nor the database has, a namespace that is not the config's, a limit of one tenant that is above one of all tenants, or one that cannot hold the cost of a request. Also, that the nodes could not be read after a write with wait."`
}

// Written reports when a change is in force, with warnings of likely mistakes.
type Written struct {
	Version     int64        `json:"version"               doc:"The version of the policies that includes the change."`
	Enforcement *Enforcement `json:"enforcement,omitempty" doc:"Present if the request waited, and the nodes could be read."`
	Warnings
}

// Enforcement reports which nodes enforce a version.
type Enforcement struct {
	Version int64 `json:"version"`
	rows.Reach
}

// OrgForgiven is an org after it was forgiven.
type OrgForgiven struct {
	rows.Forgiven
	Written
}

// CandidateList has all candidates.
type CandidateList struct {
	Items []rows.Candidate `json:"items" nullable:"false"`
}

// Page is a page of a list.
type Page[T any] struct {
	Items      []T    `json:"items"`
	NextCursor string `json:"next_cursor,omitempty" doc:"Absent: this is the last page."`
}

// OrgTokens lists the tokens that an org manages.
type OrgTokens struct {
	Tokens []rows.OrgToken `json:"tokens"`
}

// IssuedToken is a token with its secret.
type IssuedToken struct {
	rows.OrgToken
	Secret string `json:"secret,omitempty" doc:"It cannot be read again. Absent: this is a retry of an answered request, so rotate the token if the first answer was lost."`
}

// NewToken is a token of an operator with its secret.
type NewToken struct {
	Secret string     `json:"secret" doc:"It cannot be read again."`
	Token  rows.Token `json:"token"`
}

// WebhookSecret is a webhook with the secret that signs its deliveries.
type WebhookSecret struct {
	Webhook rows.Webhook `json:"webhook"`
	Secret  string       `json:"secret"  doc:"It signs deliveries, and cannot be read again."`
}

// Deliveries lists deliveries.
type Deliveries struct {
	Items []rows.Delivery `json:"items" doc:"Newest first. A delivery is kept for 7 days."`
}

// OverridePreview reports what an override would change.
type OverridePreview struct {
	At      time.Time     `json:"at"                doc:"The time that both states describe: now, or the begin of the override."`
	Begin   time.Time     `json:"starts_at,omitzero"  doc:"When the override would begin. Absent: at once."`
	End     time.Time     `json:"expires_at,omitzero" doc:"When it would end. Absent: it is permanent."`
	Applied bool          `json:"applied"           doc:"The override would have an effect."`
	Why     string        `json:"why"               doc:"What the override would do, or why it has no effect."`
	Verdict string        `json:"verdict,omitempty" doc:"What would go before all limits. Absent: limits decide." enum:"banned,exempt"`
	Changes []LimitChange `json:"changes"           doc:"The limits that the override would change."`
	Warnings
}

// LimitChange is a limit before and with an override.
type LimitChange struct {
	Policy    string       `json:"policy"`
	Endpoint  string       `json:"endpoint,omitempty" doc:"The requests that the policy covers; absent: all that have no other limit of this name."`
	Scope     string       `json:"scope"              example:"tenant"`
	Algorithm string       `json:"algorithm"`
	Unit      string       `json:"unit,omitempty"     doc:"usd: amounts are millionths of a US dollar. Absent: they are tokens." enum:"usd"`
	Before    LimitNumbers `json:"before"`
	After     LimitNumbers `json:"after"`
}

// LimitNumbers are the numbers of a limit that an override can change.
type LimitNumbers struct {
	Limit int64 `json:"limit" doc:"Tokens that a window allows."`
	schema.Window
	Burst int64 `json:"burst" doc:"The most tokens at once."`
}

// DenialList is a page of recent denials.
type DenialList struct {
	Denials []Denial `json:"denials"`
	Next    string   `json:"next,omitempty" doc:"The cursor of the next page. Absent: this is the last one."`
	Sampled bool     `json:"sampled"        doc:"An item counts several denials, so something of them was left out."`
}

// DenialGroups has recent denials by org, limit, reason and endpoint.
type DenialGroups struct {
	From  time.Time     `json:"from"         doc:"The begin of the first step."`
	Step  int64         `json:"step_seconds" doc:"How long each of the counts covers."`
	Items []DenialGroup `json:"items"        doc:"The largest is first."`
}

// DenialGroup has the denials of an org by one limit, for one reason, at one endpoint.
type DenialGroup struct {
	Denial

	Counts []int64 `json:"counts" doc:"Of count, those of each step, the earliest first."`
}

// Denial counts denials of an org by one policy at about one time.
type Denial struct {
	ID         int64     `json:"id,omitempty"                  doc:"Absent for the token of an org."`
	At         time.Time `json:"at"                            doc:"Of the last one."`
	Org        string    `json:"org,omitempty"                 doc:"Absent: the requests named none."`
	Endpoint   string    `json:"endpoint,omitempty"`
	Policy     string    `json:"policy,omitempty"              doc:"Absent: no policy denied, or several did."`
	Limit      *int64    `json:"limit,omitempty"               doc:"Tokens that a window allows, overrides included."`
	Window     string    `json:"window,omitempty"              doc:"Of a period, its length then. Absent: the limit counts requests at once." example:"1m"`
	Scope      string    `json:"scope,omitempty"               example:"tenant"`
	Reason     string    `json:"reason"                        doc:"quota, or why no limit decided; others: denials that have no item of their own." example:"quota"`
	Result     string    `json:"result"                        doc:"shadow_denied: the requests were admitted, because the policy has the mode shadow or log." enum:"denied,shadow_denied"`
	Shadow     bool      `json:"shadow"`
	Count      int64     `json:"count"                         doc:"How many it counts."`
	User       string    `json:"user,omitempty"                doc:"A hash, unless the nodes show users. Absent: none, or several."`
	IPHash     string    `json:"ip_hash,omitempty"             doc:"The same of the client's address."`
	RetryAfter *int64    `json:"retry_after_seconds,omitempty" doc:"After which the limit had room. Absent: unknown, or no wait helps."`

	decision.Denier
	RetryAt    *time.Time `json:"retry_at,omitempty"    doc:"at and retry_after_seconds, in whole seconds."`
	WouldAdmit string     `json:"would_admit,omitempty" doc:"What would have admitted the request. Where an item counts several, this and all numbers are of one of the last."`
}

// UsageExport is a page of what orgs used.
type UsageExport struct {
	Items       []rows.UsageExportRow `json:"items"`
	Models      []rows.UsageModel     `json:"models,omitempty"      doc:"With by=model, in place of items."`
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
	Unit      string    `json:"unit,omitempty"      doc:"usd: amounts are millionths of a US dollar. Absent: they are tokens." enum:"usd"`
	Fraction  float64   `json:"fraction"            doc:"1 − remaining_min ÷ limit."`
	At        time.Time `json:"at"                  doc:"The last minute in which the limit was counted there."`
}

// OrgUsages has orgs with what they used.
type OrgUsages struct {
	From  time.Time  `json:"from"  doc:"The begin of the first step that was summed up."`
	To    time.Time  `json:"to"    doc:"The end of the last one."`
	Count int        `json:"count" doc:"How many orgs there are; items has at most limit of them."`
	Items []OrgUsage `json:"items"`
}

// OrgUsage is what an org used, and what bounds it.
type OrgUsage struct {
	Org       string     `json:"org_id"`
	Tier      string     `json:"tier"`
	Source    string     `json:"tier_source"       doc:"As in get-org-policies."`
	Admitted  int64      `json:"admitted"          doc:"Requests."`
	Soft      int64      `json:"soft"              doc:"Of admitted: requests above a soft threshold."`
	Denied    int64      `json:"denied"            doc:"Requests."`
	Overrides int64      `json:"overrides"         doc:"Overrides of the org that have not ended."`
	Nearest   *NearLimit `json:"nearest,omitempty" doc:"The limit of which most was used. Absent: none was counted."`
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
	schema.Window
	Used      int64  `json:"used"           doc:"Tokens; of concurrency, requests in flight."`
	Remaining int64  `json:"remaining"      doc:"Tokens that can be spent at once."`
	Unit      string `json:"unit,omitempty" doc:"usd: amounts are millionths of a US dollar. Absent: they are tokens." enum:"usd"`

	Fraction   float64   `json:"fraction"              doc:"Used ÷ limit; above 1 where a hard threshold above 100 % allows it."`
	Reset      time.Time `json:"reset"                 doc:"When the bucket is full again, or the window ends."`
	ResetAfter int64     `json:"reset_after"           doc:"The same in seconds from now, rounded up."`
	Mode       string    `json:"mode"                                                                                                                                                                                 enum:"enforce,shadow,log"`
	PublicNote string    `json:"public_note,omitempty" doc:"The note about the policy for the org."`
	Slots      []Slot    `json:"slots,omitempty"       doc:"Of a concurrency limit: the requests in flight that hold a slot, the oldest first, at most 20."`
	MayLease   bool      `json:"may_lease"             doc:"Nodes may have taken tokens ahead of need: of the tokens shown as used, up to the nodes' lease share of the limit (2 % by default) may not be spent yet."`
}

// Slot is held by one request in flight.
type Slot struct {
	Age  int64     `json:"age"  doc:"Seconds since the request was admitted. If max_duration was changed since, it is that much off."`
	Ends time.Time `json:"ends" doc:"When the slot is free at the latest: max_duration after the admission."`
}

// MaxSlots is the number of slots that are listed of a bucket.
const MaxSlots = 20

// SlotsOf returns slots of a limit as they are listed.
func SlotsOf(l *limit.Limit, s store.Slots) []Slot {
	slots := make([]Slot, len(s.Deadlines))
	for i, deadline := range s.Deadlines {
		slots[i] = Slot{int64(l.Age(deadline, s.Now) / limit.Second), time.UnixMicro(int64(deadline)).UTC()}
	}
	return slots
}

// Usage has the current usage of an org.
type Usage struct {
	Org       string `json:"org_id"`
	Namespace string `json:"namespace"`
	OrgTier
	Version int64         `json:"policy_version,omitempty" doc:"The version of the database's policies that is in force; absent: there are none."`
	Items   []BucketUsage `json:"items"`
}

// Rows of the database, which answers have as they are.
//
//nolint:revive // one comment for all
type (
	AbuseState      = rows.AbuseState
	AuditEntry      = rows.AuditEntry
	Candidate       = rows.Candidate
	CandidateDiff   = rows.CandidateDiff
	CandidateReport = rows.CandidateReport
	Cost            = rows.Cost
	Diff            = rows.Diff
	Node            = rows.Node
	NodeVersion     = rows.NodeVersion
	Policy          = rows.Policy
	Price           = rows.Price
	Reach           = rows.Reach
	Tenant          = rows.Tenant
	Tier            = rows.Tier
	Token           = rows.Token
	UsageHistory    = rows.UsageHistory
	UsageRow        = rows.UsageRow
	UsageTop        = rows.UsageTop
	Webhook         = rows.Webhook
)
