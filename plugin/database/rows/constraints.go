package rows

import (
	"strings"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// Words that several constraints share.
const (
	idProblem    = "must be at most 128 bytes: longer names are counted by their hash, so write that"
	actorProblem = "must be given, in at most 256 bytes"
	// callerProblem and unseenProblem concern the names of actors.
	callerProblem = "must not begin with token: or oidc: because only the process that serves the REST API writes for " +
		"its callers"
	unseenProblem        = "must have no control or invisible characters, and no space at either end"
	candidateNameProblem = "must be 1 to 64 letters, digits, dots, dashes or underscores, and begin with a letter or digit"
)

// constraintOf returns the fault that a CHECK of a name reports, and false for an unlisted one. A CHECK named after a
// field of a policy, an override or a tenant has the text of the field's declaration. A CHECK of fields beside each
// other has what the declaration reports of an override that breaks it.
func constraintOf(name string) (InvalidError, bool) {
	if invalid, ok := constraints[name]; ok {
		return invalid, true
	}
	for _, f := range breaking[name].Conflicts() {
		if strings.HasPrefix(name, "overrides_"+f.Path) {
			return InvalidError{Field: f.Path, Problem: f.Message}, true
		}
	}
	if invalid, ok := declared(name, "policies_", schema.PolicyFields()); ok {
		return invalid, true
	}
	if invalid, ok := declared(name, "candidate_policies_", schema.PolicyFields()); ok {
		return invalid, true
	}
	if invalid, ok := declared(name, "tenants_", schema.TenantFields()); ok {
		return invalid, true
	}
	if invalid, ok := declared(name, "costs_", schema.CostFields()); ok {
		return invalid, true
	}
	return declared(name, "overrides_", schema.OverrideFields())
}

func declared[T any](constraint, prefix string, fields []schema.Field[T]) (InvalidError, bool) {
	for _, f := range fields {
		if constraint == prefix+f.Name {
			return InvalidError{Field: f.Name, Problem: f.Must()}, true
		}
	}
	return InvalidError{}, false
}

// breaking has an override that breaks each CHECK of a field beside others.
var breaking = map[string]schema.Override{
	"overrides_policy_missing":       {Kind: schema.KindCustomLimit},
	"overrides_policy_unused":        {Kind: schema.KindBan, Policy: "daily"},
	"overrides_limit_missing":        {Kind: schema.KindCustomLimit},
	"overrides_limit_unused":         {Kind: schema.KindBan, Limit: 1},
	"overrides_window_size_unused":   {Kind: schema.KindBan, WindowSize: 1},
	"overrides_burst_unused":         {Kind: schema.KindBan, Burst: 1},
	"overrides_tag_unused":           {Kind: schema.KindBan, Tag: "x"},
	"overrides_ip_all":               {Kind: schema.KindExempt, IP: "0.0.0.0/0"},
	"overrides_factor_missing":       {Kind: schema.KindMultiplier},
	"overrides_factor_unused":        {Kind: schema.KindBan, Factor: 1},
	"overrides_starts_at_end":        {Kind: schema.KindBan, StartsAt: time.Unix(2, 0), ExpiresAt: time.Unix(1, 0)},
	"overrides_starts_at_source":     {Kind: schema.KindBan, Source: schema.SourceScheduled},
	"overrides_expires_at_missing":   {Kind: schema.KindBan},
	"overrides_expires_at_permanent": {Kind: schema.KindBan, Permanent: true, ExpiresAt: time.Unix(1, 0)},
}

var targetFault = InvalidError{
	Field:   "tier",
	Problem: "must be given, or else one of tenant, credential, ip and for; a user is given beside its tenant",
}

// constraints lists the other CHECKs of package migrations by name.
var constraints = map[string]InvalidError{
	"tiers_name":        {Field: "name", Problem: "must be 1 to 64 bytes"},
	"tiers_description": {Field: "description", Problem: "must be at most 1024 bytes"},

	"policies_target": {
		Field:   "tier",
		Problem: "must be given, or else one of tenant, credential, ip and for; a user is given beside its tenant",
	},
	"policies_target_scope": {
		Field: "scope",
		Problem: "must be user or user+endpoint for a user, credential for a credential, ip or global for an ip, and global, " +
			"endpoint or ip for all or anonymous requests",
	},
	"policies_ip_all": {Field: "ip", Problem: "must not cover all addresses: for these, give for in its place"},
	"policies_limit_sliding_log": {
		Field:   "limit",
		Problem: "must be at most 10000, because a sliding_log keeps an entry for every request",
	},
	"policies_burst_algorithm": {
		Field:   "burst",
		Problem: "belongs to token_bucket and leaky_bucket alone: leave it out, or choose one of these",
	},
	"policies_soft_above_hard": {
		Field:   "soft_threshold_pct",
		Problem: "must be at most hard_threshold_pct, which is 100 unless given",
	},
	"policies_hard_soft_only": {
		Field:   "hard_threshold_pct",
		Problem: "must be left out beside soft_only, because a limit that never denies has no hard threshold",
	},
	"policies_cost_capacity": {
		Field:   "cost",
		Problem: "must be at most what the limit can hold, or every request would be denied",
	},
	"policies_settle_algorithm": {
		Field:   "algorithm",
		Problem: "must be token_bucket or fixed_window beside settle, because only these can charge a request afterwards",
	},
	"policies_settle_soft_only": {
		Field:   "soft_only",
		Problem: "must not be true beside settle, because a limit that never denies keeps no budget",
	},
	"policies_fair_scope": {
		Field:   "scope",
		Problem: "must be global or endpoint beside fair, because only from these several tenants spend",
	},
	"policies_fair_algorithm": {
		Field: "algorithm",
		Problem: "must be token_bucket beside fair, because shares are tokens per second and only a token_bucket refills " +
			"by the second",
	},
	"policies_fair_soft_only": {
		Field:   "soft_only",
		Problem: "must not be true beside fair, because a limit that never denies has nothing to share",
	},
	"policies_fair_window_size": {
		Field:   "window_size",
		Problem: "must be at most 3599 beside fair, because shares are divided every second and a quota is used over hours",
	},
	"policies_fair_limit": {
		Field: "limit",
		Problem: "must be at least 10 for each second of window_size beside fair, because a smaller rate has too few tokens " +
			"a second to share",
	},
	"policies_fair_burst": {Field: "burst", Problem: "must be at least what refills in a second beside fair"},

	"overrides_subject": {
		Field: "tenant",
		Problem: "must be given, perhaps with a user or an endpoint or both; or else a credential or an ip, " +
			"perhaps with a tenant and nothing more; an exempt may also be for a tag, for an endpoint of all tenants, or for " +
			"one of these and an ip or an endpoint",
	},
	"overrides_change_reason": {Field: "reason", Problem: "must be given: why is this change made?"},

	"tokens_name":        {Field: "name", Problem: "must be 1 to 64 letters, digits, dots, dashes, underscores or @"},
	"tokens_name_org":    {Field: "name", Problem: "must have no slash, or begin with the org of the token, percent-encoded"},
	"tokens_lifetime":    {Field: "expires_in", Problem: "must be from 1s to 365d"},
	"tokens_overlap":     {Field: "overlap", Problem: "must be from 0s to 7d"},
	"tokens_hash":        {Field: "hash", Problem: "must be 32 bytes"},
	"tokens_role":        {Field: "role", Problem: roleProblem},
	"tokens_org":         {Field: "org", Problem: idProblem},
	"tokens_org_missing": {Field: "org", Problem: "must be given for a tenant's token: its role is tenant:{org}"},
	"tokens_org_unused":  {Field: "org", Problem: "belongs to a tenant's token alone: leave it out"},
	"tokens_created_by":  {Field: "actor", Problem: actorProblem},
	"tokens_expires_at":  {Field: "expires_at", Problem: "must be in the future"},
	"tokens_revoked_by":  {Field: "actor", Problem: actorProblem},

	"answers_token":   {Field: "token", Problem: "must be 1 to 256 bytes"},
	"answers_key":     {Field: "idempotency_key", Problem: "must be 1 to 128 printable characters of ASCII"},
	"answers_request": {Field: "request", Problem: "must be 32 bytes"},

	"webhooks_org":          {Field: "org", Problem: idProblem},
	"webhooks_url":          {Field: "url", Problem: "must begin with https:// or http://, in at most 2048 bytes without spaces"},
	"webhooks_types":        {Field: "types", Problem: "must be at most 16"},
	"webhooks_created_by":   {Field: "actor", Problem: actorProblem},
	"webhooks_disabled_for": {Field: "enabled", Problem: "must be false where the sender has disabled the webhook"},
	"webhooks_last_error":   {Field: "last_error", Problem: "must be at most 1024 bytes"},

	"candidates_name":     {Field: "name", Problem: candidateNameProblem},
	"candidates_state":    {Field: "state", Problem: "must be open, promoted, rolled_back or dropped"},
	"candidates_percent":  {Field: "percent", Problem: "must be 0 to 100"},
	"candidates_ended_at": {Field: "state", Problem: "must be open in a new candidate"},
	"candidates_ended": {
		Field:   "state",
		Problem: "must be open: a candidate that was promoted or dropped stays as it is, so create another",
	},
	"candidate_policies_target":      targetFault,
	"candidate_policies_body_target": {Field: "body", Problem: "must be a policy of the same key"},
	"candidate_policies_body":        {Field: "body", Problem: "must be a policy of the same key, in 32768 bytes at most"},
	"candidate_tenants_tenant":       {Field: "tenant", Problem: "must have 1 to 128 bytes"},

	"audit_actor_token":         {Field: "actor", Problem: callerProblem},
	"overrides_author_token":    {Field: "author", Problem: callerProblem},
	"tokens_created_by_token":   {Field: "actor", Problem: callerProblem},
	"tokens_revoked_by_token":   {Field: "actor", Problem: callerProblem},
	"audit_actor_seen":          {Field: "actor", Problem: unseenProblem},
	"webhooks_created_by_token": {Field: "actor", Problem: callerProblem},
	"overrides_author_seen":     {Field: "author", Problem: unseenProblem},
	"tokens_created_by_seen":    {Field: "actor", Problem: unseenProblem},
	"webhooks_created_by_seen":  {Field: "actor", Problem: unseenProblem},
	"tokens_revoked_by_seen":    {Field: "actor", Problem: unseenProblem},
	"tokens_made_live": {
		Field:   "revoked_at",
		Problem: "must be empty in a new token: make it, and revoke it later",
	},
}

// conflicts lists the unique indexes of package migrations by name.
var conflicts = map[string]ConflictError{
	"policies_one_per_match": {
		What:    "policy",
		Problem: "there is one of this name for the same tier, tenant or other target and endpoint",
	},
	"costs_one_per_endpoint": {
		What:    "cost",
		Problem: "there is one for the same endpoint, which another name of a parameter does not change",
	},
	"candidates_one_open": {
		What:    "candidate",
		Problem: "another one is open: promote or drop it first",
	},
	"candidate_policies_one_per_match": {
		What:    "candidate",
		Problem: "it changes a policy of this name for the same tier or tenant and endpoint already",
	},
	"tokens_one_per_name": {
		What:    "token",
		Problem: "there is one of this name: revoke it first, or take another name",
	},
	"tokens_one_role_per_name": {
		What: "token",
		Problem: "one of this name, or of another spelling of it, has or had another role, " +
			"and the audit distinguishes tokens by their names: take another",
	},
	"tokens_one_per_hash": {What: "token", Problem: "there is one with this secret"},
	"overrides_one_per_subject": {
		What:    "override",
		Problem: "there is one of this kind for the same subject and policy: end it first",
	},
}
