package answers

import (
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// AbuseState and the types below it are rows of the database, which answers have as they are.
type (
	AbuseState      = rows.AbuseState
	AuditEntry      = rows.AuditEntry
	Candidate       = rows.Candidate
	CandidateDiff   = rows.CandidateDiff
	CandidateReport = rows.CandidateReport
	Delivery        = rows.Delivery
	Diff            = rows.Diff
	Node            = rows.Node
	NodeVersion     = rows.NodeVersion
	OrgToken        = rows.OrgToken
	Override        = schema.Override
	Policy          = rows.Policy
	Reach           = rows.Reach
	Tenant          = rows.Tenant
	UsageHistory    = rows.UsageHistory
	UsageRow        = rows.UsageRow
	UsageTop        = rows.UsageTop
	Webhook         = rows.Webhook
)
