package answers

import (
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// InForce has the limits of an org, and where they come from.
type InForce struct {
	Org       string    `json:"org_id"`
	Namespace string    `json:"namespace"`
	Version   int64     `json:"policy_version,omitempty" doc:"The version of the database's policies that is in force; absent: there are none."`
	At        time.Time `json:"at"                       doc:"The time that this describes: overrides begin and expire."`
	OrgTier
	Summary string `json:"summary"                  doc:"A summary in one sentence."`

	Limits     []LimitInForce    `json:"limits"       doc:"All limits that cover a request must have room for it."`
	Exceptions []Exception       `json:"exceptions"   doc:"Bans and exemptions, which go before all limits."`
	NotInForce []PassedOver      `json:"not_in_force" doc:"The policies that could apply and do not."`
	Overrides  []OverrideInForce `json:"overrides"    doc:"All overrides of these requests, in force or not."`

	Truncated *Truncated `json:"truncated,omitempty" doc:"How many items are left off, because a list has more than limit; absent: none. With endpoint, the lists have what concerns that one; the overrides of the org are also listed page by page."`
}

// Truncated counts what the lists of InForce lack.
type Truncated struct {
	Limits     int `json:"limits,omitempty"`
	Exceptions int `json:"exceptions,omitempty"`
	NotInForce int `json:"not_in_force,omitempty"`
	Overrides  int `json:"overrides,omitempty"`
}

// Window is what a limit counts over.
type Window = schema.Window

// Amount returns an amount of a limit as people read it, see schema.Amount.
func Amount(n int64, unit string) string { return schema.Amount(n, unit) }

// LimitInForce is a limit and where it comes from.
type LimitInForce struct {
	Policy   string `json:"policy"                doc:"The name of the policy."                                                         example:"daily"`
	Tier     string `json:"tier,omitempty"        doc:"The tier whose list in the plugin's config has it."`
	Endpoint string `json:"endpoint,omitempty"    doc:"The requests that it covers; absent: all that have no other limit of this name."`
	Source   string `json:"source"                doc:"config: the plugin's config; row: the database."                                                           enum:"config,row"`
	Row      int64  `json:"policy_id,omitempty"   doc:"The id of the policy in the database; absent: it is in the plugin's config."`
	Match    string `json:"match"                 doc:"What the policy applies to: tenant, tier and its name, or global."               example:"tier enterprise"`
	Scope    string `json:"scope"                 doc:"What the limit is counted per."                                                  example:"tenant"`
	Limit    int64  `json:"limit"                 doc:"Tokens that a window allows, overrides included."`
	schema.Window
	Burst      int64     `json:"burst"                 doc:"The most tokens at once."`
	Unit       string    `json:"unit,omitempty"        doc:"usd: amounts are millionths of a US dollar. Absent: they are tokens."                              enum:"usd"`
	Models     string    `json:"models,omitempty"      doc:"The calls of language models that it counts; absent: all requests."                                          example:"model gpt-4o*"`
	Algorithm  string    `json:"algorithm"`
	Cost       int64     `json:"cost,omitempty"        doc:"Tokens that a request spends; absent: what the request costs, 1 unless a config or a caller says otherwise."`
	Settles    bool      `json:"settles,omitempty"     doc:"A request reserves tokens, and is charged what its answer reports."`
	Mode       string    `json:"mode"                                                                                                                                  enum:"enforce,shadow,log"`
	FailMode   string    `json:"fail_mode"                                                                                                                             enum:"open,closed,local"`
	Accuracy   string    `json:"accuracy"                                                                                                                              enum:"leased,exact"`
	Overrides  []int64   `json:"overrides,omitempty"   doc:"The ids of the overrides that changed the limit."`
	Until      time.Time `json:"until,omitzero"        doc:"When the first of those ends; absent: none does."`
	PublicNote string    `json:"public_note,omitempty" doc:"The note about the policy for the org."`
	Summary    string    `json:"summary"               doc:"A summary in one sentence."`
}

// Exception is a ban or an exemption.
type Exception struct {
	Verdict  string    `json:"verdict"            enum:"banned,exempt"`
	Endpoint string    `json:"endpoint,omitempty"                      doc:"The requests that it covers; absent: all."`
	Override int64     `json:"override,omitempty"                      doc:"Absent: it is in the plugin's config."`
	Until    time.Time `json:"until,omitzero"                          doc:"Absent: it has no end."`

	PublicNote string `json:"public_note,omitempty" doc:"The note about the override for the org."`

	Summary string `json:"summary"`
}

// PassedOver is a policy that could apply and does not.
type PassedOver struct {
	Policy   string `json:"policy"`
	Endpoint string `json:"endpoint,omitempty"`
	Source   string `json:"source"              enum:"config,row"`
	Row      int64  `json:"policy_id,omitempty"`
	Match    string `json:"match"`
	Limit    string `json:"limit"                                 doc:"In words."`
	Why      string `json:"why"`
}

// OverrideInForce is an override on these requests. The complete one is at .../overrides/{id}.
type OverrideInForce struct {
	ID       int64  `json:"id"`
	Kind     string `json:"kind"               enum:"custom_limit,multiplier,ban,exempt,topup"`
	Target   string `json:"target"                                                       doc:"What it is on."                                    example:"tenant"`
	Endpoint string `json:"endpoint,omitempty"`

	Policy     string  `json:"policy,omitempty"      doc:"The policy whose limit it changes; absent: each limit, or none." example:"daily"`
	Limit      int64   `json:"limit,omitempty"       doc:"Of a custom_limit: tokens that a window allows."`
	WindowSize int64   `json:"window_size,omitempty" doc:"Of a custom_limit: seconds; absent: as the policy has it."`
	Burst      int64   `json:"burst,omitempty"       doc:"Of a custom_limit: the most tokens at once; absent: as the algorithm has it."`
	Factor     float64 `json:"factor,omitempty"      doc:"Of a multiplier."                                               example:"1.5"`
	Amount     int64   `json:"amount,omitempty"      doc:"Of a topup: tokens that it adds to the limit."`
	Unit       string  `json:"unit,omitempty"        doc:"usd: amounts are millionths of a US dollar, as those of the limit that it is about. Absent: they are tokens." enum:"usd"`

	From   time.Time `json:"from,omitzero"                                                doc:"Absent: it began when it was made."`
	Until  time.Time `json:"until,omitzero"                                               doc:"Absent: it is permanent."`
	Reason string    `json:"reason,omitempty"                                             doc:"Absent for the token of an org, as the author is."`
	Author string    `json:"author,omitempty"`

	PublicNote string `json:"public_note,omitempty" doc:"The note about it for the org."`

	General bool   `json:"general,omitempty" doc:"It names no org, and applies to the requests of all."`
	Applied bool   `json:"applied"`
	Why     string `json:"why"`
}

// OrgTier is the tier of an org, and where it comes from.
type OrgTier struct {
	Tier   string     `json:"tier"`
	Title  string     `json:"tier_title,omitempty"   doc:"The name of the tier for people."`
	Price  string     `json:"tier_price,omitempty"   doc:"Its price in words."`
	Pool   string     `json:"redis_pool,omitempty"   doc:"The pool of Redis that counts its requests. Absent: the plugin's config has no pools."`
	Source string     `json:"tier_source"            doc:"row: it is set for the org; query: the caller names it; as the plugin's config names it, such as consumer.tag.tier: nodes found it there, or the config file has it; default: nodes found none; assumed: no node has seen the org, so this is the default. It adds why a tier named elsewhere does not apply." example:"consumer.tag.tier"`
	SeenAt time.Time  `json:"tier_seen_at,omitzero"  doc:"When a node last reported it, to five minutes; absent: none has."`
	Others []SeenTier `json:"other_tiers,omitempty"  doc:"Further tiers of the org that nodes see beside it: two of its consumers have different ones."`
}

// SeenTier is a tier that nodes have seen of an org.
type SeenTier struct {
	Tier   string    `json:"tier"`
	Pool   string    `json:"redis_pool,omitempty"`
	Source string    `json:"tier_source"`
	SeenAt time.Time `json:"tier_seen_at,omitzero"`

	Since time.Time `json:"-"` // nodes report it again and again
}
