package decision

// Denier describes what denied a request, for records of denials: the limit as it was then. A field is absent where
// nothing is known of it.
type Denier struct {
	Tier          string `json:"tier,omitempty"           doc:"Of the requests."                                                                   example:"gold"`
	PolicyFor     string `json:"policy_for,omitempty"     doc:"What the policy applies to."                                                        example:"tier gold"`
	PolicyID      *int64 `json:"policy_id,omitempty"      doc:"The id of the policy in the database; absent: it is in the plugin's config."`
	PolicyVersion *int64 `json:"policy_version,omitempty" doc:"The version of all rows that decided, as in fleet and audit; absent: the config alone did."`
	Capacity      *int64 `json:"capacity,omitempty"       doc:"Tokens that the limit holds at most."`
	Cost          *int64 `json:"cost,omitempty"           doc:"Tokens that the request would have taken."`
	Remaining     *int64 `json:"remaining,omitempty"      doc:"Tokens that were left."`
	Override      *int64 `json:"override,omitempty"       doc:"The id of the override that changed the limit, or that bans."`
	Penalty       *int64 `json:"penalty,omitempty"        doc:"The id of the detector's override that lowered the limit."`
}
