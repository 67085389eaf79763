package schema

// Policy is a limit for all tenants of a tier or for one tenant, as a row of the database has it, a file of policies,
// the REST API and the ratelimit command. Each field is declared here or in Limit alone: its JSON name is the name of
// its column, its doc comment its description, and its tags are its constraints. PolicyFields lists them.
//
// An empty text and a zero number mean absent.
type Policy struct {
	// The namespace of the plugin configs that the policy applies to. Default: default.
	Namespace string `json:"namespace,omitempty" kong:"match=^[A-Za-z0-9_.-]+$,len_max=64" kong_err:"must be 1 to 64 letters, digits, dots, dashes or underscores" default:"default"`

	// The tier whose tenants the policy applies to. Give either tier or tenant.
	Tier string `json:"tier,omitempty" kong:"len_max=64" kong_err:"must have at most 64 bytes" example:"enterprise"`

	// The tenant that the policy applies to, at most 128 bytes: a longer name is counted by its hash, so give that. Give
	// either tenant or tier.
	Tenant string `json:"tenant,omitempty" kong:"len_max=128" kong_err:"must have at most 128 bytes: write the hash by which a longer name is counted" example:"acme"`

	Limit

	// The note that the tenant sees, at most 1024 bytes without control characters. Default: nothing.
	PublicNote string `json:"public_note,omitempty" kong:"len_max=1024" kong_err:"must have at most 1024 bytes, without control characters" unit:"text" example:"Agreed until the end of the year."`

	// Always active: changes to be tried belong to a candidate, which is a set of its own. A row of the slot candidate is
	// from an older release, applies to no request, and can only be listed and deleted. Default: active.
	Slot string `json:"slot,omitempty" kong:"one_of=active" kong_err:"must be active: to try a limit, put it into a candidate, or write it under another name with mode shadow" default:"active"`
}
