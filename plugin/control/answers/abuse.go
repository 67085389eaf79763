package answers

import (
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

// AbuseList has the orgs on the ladder.
type AbuseList struct {
	Items []rows.AbuseState `json:"items"`
}

// OrgForgiven is an org after it was forgiven.
type OrgForgiven struct {
	Org       string    `json:"org_id"`
	Until     time.Time `json:"forgiven_until"  doc:"The org is on no step until then."`
	Overrides []int64   `json:"ended_overrides" doc:"The penalties that were ended, by id."`
	Written
}
