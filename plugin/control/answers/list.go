package answers

import "github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"

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
