package pgstore

// Words that several constraints share.
const (
	nameProblem     = "must be 1 to 64 letters, digits, dots, dashes or underscores"
	limitProblem    = "must be between 1 and 10^12 tokens"
	windowProblem   = "must be between 1 and 31622400 seconds (366 days)"
	endpointProblem = "must be METHOD /pattern, such as GET /records/{id}, or * /pattern for any method, and at most 1024 bytes"
	tierProblem     = "must be at most 64 bytes"
	idProblem       = "must be at most 128 bytes: whoever has a longer name is counted by its hash, so write that"
	actorProblem    = "must be given, in at most 256 bytes"
	// tokenActorProblem and unseenProblem are about whoever is said to have done something.
	tokenActorProblem = "must not begin with token: that is a caller of the REST API, for whom its process alone writes"
	unseenProblem     = "must have no control or invisible characters, and no space at either end"
	customLimitField  = "belongs to a custom_limit alone: leave it out"
)

// constraints are the names of the CHECKs in package migrations, and what they ask for.
var constraints = map[string]InvalidError{
	"tiers_name":        {Field: "name", Problem: "must be 1 to 64 bytes"},
	"tiers_description": {Field: "description", Problem: "must be at most 1024 bytes"},

	"tenants_id":        {Field: "id", Problem: "must be 1 to 128 bytes: whoever has a longer name is counted by its hash, so write that"},
	"tenants_tier":      {Field: "tier", Problem: tierProblem},
	"tenants_time_zone": {Field: "time_zone", Problem: timeZoneProblem},

	"policies_namespace":          {Field: "namespace", Problem: nameProblem},
	"policies_name":               {Field: "name", Problem: nameProblem},
	"policies_tier":               {Field: "tier", Problem: tierProblem},
	"policies_tenant":             {Field: "tenant", Problem: idProblem},
	"policies_tier_or_tenant":     {Field: "tier", Problem: "must be given, or else tenant: a policy is for a tier or for a tenant, not for both"},
	"policies_endpoint":           {Field: "endpoint", Problem: endpointProblem},
	"policies_scope":              {Field: "scope", Problem: "must be tenant, user, credential, ip, endpoint, global, tenant+endpoint or user+endpoint"},
	"policies_limit":              {Field: "limit", Problem: limitProblem},
	"policies_limit_sliding_log":  {Field: "limit", Problem: "must be at most 10000, because a sliding_log keeps an entry for every request"},
	"policies_window_size":        {Field: "window_size", Problem: windowProblem},
	"policies_algorithm":          {Field: "algorithm", Problem: "must be token_bucket, leaky_bucket, fixed_window, sliding_window or sliding_log"},
	"policies_burst":              {Field: "burst", Problem: limitProblem},
	"policies_burst_algorithm":    {Field: "burst", Problem: "belongs to token_bucket and leaky_bucket alone: leave it out, or choose one of these"},
	"policies_soft_threshold_pct": {Field: "soft_threshold_pct", Problem: "must be between 1 and 1000 percent"},
	"policies_soft_above_hard":    {Field: "soft_threshold_pct", Problem: "must be at most hard_threshold_pct, which is 100 unless given"},
	"policies_hard_threshold_pct": {Field: "hard_threshold_pct", Problem: "must be between 100 and 1000 percent"},
	"policies_hard_soft_only":     {Field: "hard_threshold_pct", Problem: "must be left out beside soft_only, because a limit that never refuses has no hard threshold"},
	"policies_mode":               {Field: "mode", Problem: "must be enforce, shadow or log, or left out for the mode of the config"},
	"policies_cost":               {Field: "cost", Problem: "must be between 0 and 10^9 tokens"},
	"policies_cost_capacity":      {Field: "cost", Problem: "must be at most what the limit can hold, or every request would be refused"},
	"policies_fail_mode":          {Field: "fail_mode", Problem: "must be open, closed or local, or left out for that of the config"},
	"policies_slot":               {Field: "slot", Problem: "must be active"},
	"policies_slot_active":        {Field: "slot", Problem: NoCandidate},
	"policies_public_note":        {Field: "public_note", Problem: "must have at most 1024 bytes, without control characters"},
	"policies_accuracy":           {Field: "accuracy", Problem: "must be leased or exact, or left out for that of the config"},

	"overrides_kind":                 {Field: "kind", Problem: "must be custom_limit, multiplier, ban or exempt"},
	"overrides_tenant":               {Field: "tenant", Problem: idProblem},
	"overrides_user":                 {Field: "user", Problem: idProblem},
	"overrides_endpoint":             {Field: "endpoint", Problem: endpointProblem},
	"overrides_credential":           {Field: "credential", Problem: idProblem},
	"overrides_ip":                   {Field: "ip", Problem: "must be one address, or a prefix of IPv6 addresses"},
	"overrides_subject":              {Field: "tenant", Problem: "must be given, perhaps with a user or an endpoint or both; or else a credential or an ip, perhaps with a tenant and nothing more"},
	"overrides_policy":               {Field: "policy", Problem: nameProblem},
	"overrides_policy_missing":       {Field: "policy", Problem: "must be given: a custom_limit replaces the limit of the policy that it names"},
	"overrides_policy_unused":        {Field: "policy", Problem: "belongs to a custom_limit or multiplier: a ban or an exempt is for all policies"},
	"overrides_limit":                {Field: "limit", Problem: limitProblem},
	"overrides_limit_missing":        {Field: "limit", Problem: "must be given for a custom_limit"},
	"overrides_limit_unused":         {Field: "limit", Problem: customLimitField},
	"overrides_window_size":          {Field: "window_size", Problem: windowProblem},
	"overrides_window_size_unused":   {Field: "window_size", Problem: customLimitField},
	"overrides_burst":                {Field: "burst", Problem: limitProblem},
	"overrides_burst_unused":         {Field: "burst", Problem: customLimitField},
	"overrides_factor":               {Field: "factor", Problem: "must be between 1 and 1000000 thousandths"},
	"overrides_factor_missing":       {Field: "factor", Problem: "must be given for a multiplier, in thousandths: 1500 is half as much again"},
	"overrides_factor_unused":        {Field: "factor", Problem: "belongs to a multiplier alone: leave it out"},
	"overrides_public_note":          {Field: "public_note", Problem: "must have at most 1024 bytes, without control characters"},
	"overrides_reason":               {Field: "reason", Problem: "must be given, in at most 1024 bytes"},
	"overrides_author":               {Field: "author", Problem: "must be given, in at most 256 bytes"},
	"overrides_expires_at":           {Field: "expires_at", Problem: "must be in the future"},
	"overrides_expires_at_missing":   {Field: "expires_at", Problem: "must be given, unless the override is made permanent on purpose"},
	"overrides_expires_at_permanent": {Field: "expires_at", Problem: "must be left out of a permanent override"},
	"overrides_source":               {Field: "source", Problem: "must be commercial or detector"},
	"overrides_change_reason":        {Field: "reason", Problem: "must be given: why is this change made?"},

	"tokens_name":        {Field: "name", Problem: "must be 1 to 64 letters, digits, dots, dashes, underscores or @"},
	"tokens_hash":        {Field: "hash", Problem: "must be 32 bytes"},
	"tokens_role":        {Field: "role", Problem: roleProblem},
	"tokens_org":         {Field: "org", Problem: idProblem},
	"tokens_org_missing": {Field: "org", Problem: "must be given for a tenant's token: its role is tenant:{org}"},
	"tokens_org_unused":  {Field: "org", Problem: "belongs to a tenant's token alone: leave it out"},
	"tokens_created_by":  {Field: "actor", Problem: actorProblem},
	"tokens_expires_at":  {Field: "expires_at", Problem: "must be in the future"},
	"tokens_revoked_by":  {Field: "actor", Problem: actorProblem},

	"answers_token":   {Field: "token", Problem: "must be 1 to 64 bytes"},
	"answers_key":     {Field: "idempotency_key", Problem: "must be 1 to 128 printable characters of ASCII"},
	"answers_request": {Field: "request", Problem: "must be 32 bytes"},

	"audit_actor_token":       {Field: "actor", Problem: tokenActorProblem},
	"overrides_author_token":  {Field: "author", Problem: tokenActorProblem},
	"tokens_created_by_token": {Field: "actor", Problem: tokenActorProblem},
	"tokens_revoked_by_token": {Field: "actor", Problem: tokenActorProblem},
	"audit_actor_seen":        {Field: "actor", Problem: unseenProblem},
	"overrides_author_seen":   {Field: "author", Problem: unseenProblem},
	"tokens_created_by_seen":  {Field: "actor", Problem: unseenProblem},
	"tokens_revoked_by_seen":  {Field: "actor", Problem: unseenProblem},
	"tokens_made_live":        {Field: "revoked_at", Problem: "must be empty in a new token: make it, and revoke it later"},

	"nodes_node":    {Field: "node", Problem: "must be 1 to 256 bytes"},
	"nodes_version": {Field: "version", Problem: "must not be negative"},
	"nodes_source":  {Field: "source", Problem: "must be postgres, disk or config"},
	"nodes_faults":  {Field: "faults", Problem: "must be a list"},
}

// conflicts are the names of the unique indexes in package migrations, and what a second row means.
var conflicts = map[string]ConflictError{
	"policies_one_per_match":    {What: "policy", Problem: "there is one of this name for the same tier or tenant and endpoint"},
	"tokens_one_per_name":       {What: "token", Problem: "there is one of this name: revoke it first, or take another name"},
	"tokens_one_role_per_name":  {What: "token", Problem: "one of this name, or of another spelling of it, has or had another role, and the audit tells tokens apart by their names: take another"},
	"tokens_one_per_hash":       {What: "token", Problem: "there is one with this secret"},
	"overrides_one_per_subject": {What: "override", Problem: "there is one of this kind for the same subject and policy: end it first"},
}
