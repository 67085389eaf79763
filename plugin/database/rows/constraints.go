package rows

import "github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"

// Words that several constraints share.
const (
	idProblem    = "must be at most 128 bytes: longer names are counted by their hash, so write that"
	actorProblem = "must be given, in at most 256 bytes"
	// callerProblem and unseenProblem concern the names of actors.
	callerProblem = "must not begin with token: or oidc: because only the process that serves the REST API writes for " +
		"its callers"
	unseenProblem = "must have no control or invisible characters, and no space at either end"
)

// expiryProblem is about an override that has ended by the clock of the database.
var expiryProblem = schema.FieldNamed(schema.OverrideFields(), "expires_at").Must()

// constraints lists the CHECKs of package migrations, by name, whose faults only the database sees. What the checks of
// packages policy and schema report never reaches the others.
var constraints = map[string]InvalidError{
	"tiers_name":                {Field: "name", Problem: "must be 1 to 64 bytes"},
	"tiers_description":         {Field: "description", Problem: "must be at most 1024 bytes"},
	"tokens_name":               {Field: "name", Problem: "must be 1 to 64 letters, digits, dots, dashes, underscores or @"},
	"tokens_name_org":           {Field: "name", Problem: "must have no slash, or begin with the org of the token, percent-encoded"},
	"tokens_lifetime":           {Field: "expires_in", Problem: "must be from 1s to 365d"},
	"tokens_overlap":            {Field: "overlap", Problem: "must be from 0s to 7d"},
	"tokens_role":               {Field: "role", Problem: roleProblem},
	"tokens_org":                {Field: "org", Problem: idProblem},
	"tokens_org_missing":        {Field: "org", Problem: "must be given for a tenant's token: its role is tenant:{org}"},
	"tokens_org_unused":         {Field: "org", Problem: "belongs to a tenant's token alone: leave it out"},
	"tokens_created_by":         {Field: "actor", Problem: actorProblem},
	"tokens_expires_at":         {Field: "expires_at", Problem: "must be in the future"},
	"tokens_revoked_by":         {Field: "actor", Problem: actorProblem},
	"answers_key":               {Field: "idempotency_key", Problem: "must be 1 to 128 printable characters of ASCII"},
	"webhooks_org":              {Field: "org", Problem: idProblem},
	"webhooks_created_by":       {Field: "actor", Problem: actorProblem},
	"candidates_name":           {Field: "name", Problem: candidateNameProblem},
	"audit_actor_token":         {Field: "actor", Problem: callerProblem},
	"overrides_expires_at":      {Field: "expires_at", Problem: expiryProblem},
	"overrides_author_token":    {Field: "author", Problem: callerProblem},
	"audit_actor_seen":          {Field: "actor", Problem: unseenProblem},
	"webhooks_created_by_token": {Field: "actor", Problem: callerProblem},
	"overrides_author_seen":     {Field: "author", Problem: unseenProblem},
	"webhooks_created_by_seen":  {Field: "actor", Problem: unseenProblem},
}

// conflicts lists the unique indexes of package migrations, by name, that a write can break: the others are read first.
var conflicts = map[string]ConflictError{
	"tokens_one_per_name": {
		What:    "token",
		Problem: "there is one of this name: revoke it first, or take another name",
	},
	"tokens_one_role_per_name": {
		What: "token",
		Problem: "one of this name, or of another spelling of it, has or had another role, " +
			"and the audit distinguishes tokens by their names: take another",
	},
	"overrides_one_per_subject": {
		What:    "override",
		Problem: "there is one of this kind for the same subject and policy: end it first",
	},
}
