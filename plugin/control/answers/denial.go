package answers

import (
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
)

// DenialList is a page of recent denials.
type DenialList struct {
	Denials []Denial `json:"denials"`
	Next    string   `json:"next,omitempty" doc:"The cursor of the next page. Absent: this is the last one."`
	Sampled bool     `json:"sampled"        doc:"An item counts several denials, so something of them was left out."`
}

// Denial counts denials of an org by one policy at about one time.
type Denial struct {
	ID         int64     `json:"id,omitempty"                  doc:"Absent for the token of an org."`
	At         time.Time `json:"at"                            doc:"Of the last one."`
	Org        string    `json:"org,omitempty"                 doc:"Absent: the requests named none."`
	Endpoint   string    `json:"endpoint,omitempty"`
	Policy     string    `json:"policy,omitempty"              doc:"Absent: no policy denied, or several did."`
	Limit      *int64    `json:"limit,omitempty"               doc:"Tokens that a window allows, overrides included."`
	Window     string    `json:"window,omitempty"              example:"1m"`
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
