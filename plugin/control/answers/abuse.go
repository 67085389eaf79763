package answers

import (
	"time"
)

// OrgForgiven is an org after it was forgiven.
type OrgForgiven struct {
	Org       string    `json:"org_id"`
	Until     time.Time `json:"forgiven_until"  doc:"The org is on no step until then."`
	Overrides []int64   `json:"ended_overrides" doc:"The penalties that were ended, by id."`
	Written
}
