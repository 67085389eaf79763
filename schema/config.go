// Package schema declares the plugin's Config and the rows of policies, and holds the Kong schema that is generated
// from them. It checks configs, and reports every fault with its path.
//
// config.go and limit.go declare the config, and policy.go, override.go and row.go the rows. The first paragraph of a
// field's doc comment is its description, its tags are its constraints, and the //kong:check lines above a type are
// its entity checks. internal/gen turns them into kong_schema.json, row_schema.json and options.md. Parse, Validate and
// Kong read the generated schema. semantic.go has the rules that the schema language cannot express, such as those of
// two fields in different records.
//
// Package policy compiles a Config into policies, and package limit has the arithmetic.
package schema

//go:generate go run ./internal/gen

// Config holds one plugin configuration. Parse returns it with all defaults filled in. In a Config built in Go, a zero
// field with a default means that default (see WithDefaults).
//
//kong:patterns source {"patterns": ["^consumer[.]id$", "^consumer[.]username$", "^consumer[.]custom_id$", "^consumer[.]tag[.][!-~]+$", "^header[.][A-Za-z0-9_-]+$", "^jwt[.][!-~]+$"], "err": "must be consumer.id, consumer.username, consumer.custom_id, consumer.tag.<key>, header.<Name> or jwt.<claim>"}
//kong:check {"conditional_at_least_one_of": {"if_field": "strategy", "if_match": {"eq": "redis"}, "then_at_least_one_of": ["redis.host", "redis.socket", "redis.cluster_nodes", "redis.sentinel_nodes"], "then_err": "redis needs redis.host, redis.socket, redis.cluster_nodes or redis.sentinel_nodes"}}
type Config struct {
	// Where the tenant is read from, in order; the first source that is not empty wins. Sources: consumer.id,
	// consumer.username, consumer.custom_id, consumer.tag.<key> (a tag written key:value), header.<Name> (only if listed
	// in trusted_headers), jwt.<claim> (of the token that Kong's jwt plugin verified). Default: consumer.custom_id, then
	// consumer.username.
	TenantFrom []string `json:"tenant_from" kong:"required,len_min=1,len_max=16" elements:"match_any=source" default:"consumer.custom_id|consumer.username"`

	// Where the user inside a tenant is read from, in order; same sources as tenant_from. Default: none, so every request
	// follows on_missing_user.
	UserFrom []string `json:"user_from" kong:"required,len_max=16" elements:"match_any=source" default:""`

	// Where the tier of a tenant is read from, in order; same sources as tenant_from. A value that names no tier counts as
	// missing, and default_tier applies. Default: consumer.tag.tier.
	TierFrom []string `json:"tier_from" kong:"required,len_max=16" elements:"match_any=source" default:"consumer.tag.tier"`

	// Request headers that clients cannot forge because something in front of this plugin sets or removes them. A
	// header.<Name> source, a cost_header or a reserve_header that is not listed here is denied. Case does not matter. A
	// request in which a header that is read has more than one value, or a comma in it, is denied with 400 (see
	// docs/security.md). Default: none.
	TrustedHeaders []string `json:"trusted_headers" kong:"required,set" elements:"match=^[A-Za-z0-9_-]+$,len_max=128" elements_err:"must be a header name: letters, digits, dashes or underscores" default:""`

	// The tier of a tenant for which tier_from finds none. It must be the name of one of the tiers. Default: the first
	// tier of the list.
	DefaultTier string `json:"default_tier,omitempty" kong:"len_max=64"`

	// What happens to a request without a tenant: limit_by_ip counts it by client address, deny denies it, skip applies
	// only the global limits. limit_by_ip applies the anonymous limits, or those of the default tier when there are none.
	// Default: limit_by_ip.
	OnMissingTenant string `json:"on_missing_tenant,omitempty" kong:"required,one_of=limit_by_ip|deny|skip" default:"limit_by_ip"`

	// Usernames or ids of the consumers that stand for anonymous clients, such as the anonymous consumer of key-auth. They
	// count as a missing tenant; otherwise all anonymous clients would be one tenant. Default: anonymous.
	AnonymousConsumers []string `json:"anonymous_consumers" kong:"required" elements:"len_max=256" default:"anonymous"`

	// What a limit per user is counted by when the request names no user: credential (and by ip when there is no
	// credential either), ip, skip (that limit does not apply) or deny. Default: credential.
	OnMissingUser string `json:"on_missing_user,omitempty" kong:"required,one_of=credential|ip|skip|deny" default:"credential"`

	// How many leading bits of an IPv6 address count as one client. One subscriber usually holds a whole /64. Default: 64
	// bits.
	IPv6PrefixLength int64 `json:"ipv6_prefix_length,omitempty" kong:"required,between=1..128" default:"64"`

	// Matches endpoint patterns on the path with its reserved characters decoded too, once, so that /records%2F7 meets GET
	// /records/{id}. Only for upstreams that take %2F for a slash: on others a client could pass for another endpoint.
	// Default: false, the path as Kong's router knows it, which keeps these encoded.
	DecodePath bool `json:"decode_path" kong:"required" default:"false"`

	// What the limits do: enforce them, shadow (decide and record but never deny), or log (shadow, and log each request
	// that would have been denied). A limit may have a mode of its own. Default: enforce.
	Mode string `json:"mode,omitempty" kong:"required,one_of=enforce|shadow|log" default:"enforce"`

	// What a request to an endpoint costs, in tokens: "METHOD /pattern" to an integer from 0 (free) to 10^9. Patterns may
	// hold {param} and end in *, and * stands for any method. Default: 1 token for every endpoint.
	Costs map[string]int64 `json:"costs,omitempty" keys:"match=^[A-Z*-]+ /[^ ]*$,len_max=1024" keys_err:"must be METHOD /pattern, such as GET /records/{id}, or * /pattern for any method" values:"between=0..1000000000"`

	// Name of a request header that carries the cost of the request in tokens, as an integer. It must be listed in
	// trusted_headers. A missing or malformed value counts as the cost found in costs, else 1. Default: no header is read.
	CostHeader string `json:"cost_header,omitempty" kong:"match=^[A-Za-z0-9_-]+$,len_max=128" kong_err:"must be a header name: letters, digits, dashes or underscores"`

	// The largest cost in tokens that cost_header may ask for; a higher value counts as this. Default: 1000 tokens.
	CostHeaderMax int64 `json:"cost_header_max,omitempty" kong:"required,between=1..1000000000" default:"1000"`

	// Where the calls of language models are read after a response, and what they cost: for limits with unit usd or match,
	// and for the usage by model. Default: absent, the paths of Kong's ai-proxy and no prices.
	LLM LLM `json:"llm,omitzero"`

	// The tiers (plans) and their limits. A tier with an empty list of limits has no cap and sends no rate limit headers.
	// Default: none.
	Tiers []Tier `json:"tiers" kong:"required" default:""`

	// The limits of requests without a tenant, used when on_missing_tenant is limit_by_ip. Default: absent, which counts
	// such requests by ip under the limits of the default tier.
	Anonymous Anonymous `json:"anonymous,omitzero"`

	// The limits that hold for all tenants together, in addition to those of the tier. Default: absent, no such limits.
	Global Global `json:"global,omitzero"`

	// The requests that no limit applies to: each entry names a tenant, a user, a tag of the consumer, a network, an
	// endpoint, or several of these, which must then all match. Bans and meta_limit hold for them too. The first entry
	// that matches counts. Default: none.
	Exempt []Exemption `json:"exempt" kong:"required,len_max=10000" default:""`

	// Lifts the limits of tenants, their users and credentials from CORS preflights: OPTIONS requests with one Origin and
	// one Access-Control-Request-Method. Limits counted by address, per endpoint for all tenants or in total still hold.
	// Default: false, a preflight counts as any request.
	ExemptPreflights bool `json:"exempt_preflights" kong:"required" default:"false"`

	// Keeps counters apart: configs with the same namespace share the counters of limits with the same name, on whatever
	// route they are enabled. Default: default, one namespace for all.
	Namespace string `json:"namespace,omitempty" kong:"required,match=^[A-Za-z0-9_.-]+$,len_max=64" kong_err:"must be 1 to 64 letters, digits, dots, dashes or underscores" default:"default"`

	// Where counters are kept: local (in the plugin's own process, one count per Kong node) or redis (shared by all
	// nodes). Default: local.
	Strategy string `json:"strategy,omitempty" kong:"required,one_of=local|redis" default:"local"`

	// How Redis is reached when strategy is redis. Timeouts are in milliseconds. Default: the defaults of its fields.
	Redis Redis `json:"redis" kong:"required"`

	// More Redis, each with a name, for the tiers that name it in redis_pool. A pool has connections, circuit breakers and
	// outages of its own. Limits that tenants share are counted in each pool by itself. Default: none, redis has all
	// counters.
	RedisPools []RedisPool `json:"redis_pools" kong:"required,len_max=32" default:""`

	// What the limits do while Redis cannot be reached: open (admit), closed (deny), local (count in this process, with
	// this node's share of the limit). A limit may have a fail mode of its own. Default: local.
	FailMode string `json:"fail_mode,omitempty" kong:"required,one_of=open|closed|local" default:"local"`

	// How near to the limit all nodes together come. leased: a node takes tokens of busy limits from Redis ahead of need,
	// so it need not ask for every request. This never admits more than the limit, and at most 2 percent fewer (of limits
	// with a capacity of 500 and more). exact: every request asks Redis. Only token_bucket and fixed_window are ever
	// leased: other algorithms and smaller limits are exact anyway. It does nothing with strategy local. A limit may have
	// an accuracy of its own. Default: leased.
	Accuracy string `json:"accuracy,omitempty" kong:"required,one_of=leased|exact" default:"leased"`

	// How much of a limit all nodes together may give out while Redis cannot be reached and its fail mode is local, in
	// percent. Each live node has an equal part of it, at least 1 token. Default: 70 percent.
	LocalSharePct int64 `json:"local_share_pct,omitempty" kong:"required,between=1..100" default:"70"`

	// HTTP status code of a denial by a limit that fails closed, from 400 to 599; its body says that capacity is reduced
	// for the moment. Default: 503.
	ClosedStatus int64 `json:"closed_status,omitempty" kong:"required,between=400..599" default:"503"`

	// Also sends X-RateLimit-Degraded while Redis does not answer: each enforced limit that it did not answer for, with
	// what decided instead (burst=local, daily=closed). Default: false.
	DegradedHeader bool `json:"degraded_header" kong:"required" default:"false"`

	// The most requests of one tenant (or of one address, without a tenant) that each node decides about, in requests per
	// second. It is counted in this process, before any other limit and whatever they say, and protects the limiter
	// itself. From 1 to 10^9 requests per second. Default: none.
	//
	// Zero means absent.
	MetaLimit int64 `json:"meta_limit,omitempty" kong:"between=1..1000000000"`

	// What happens to requests when this config is faulty and no earlier good version of it is known: open (admit) or
	// closed (deny). Default: open.
	OnConfigFault string `json:"on_config_fault,omitempty" kong:"required,one_of=open|closed" default:"open"`

	// What happens to a request when the plugin itself fails while deciding about it: open (admit) or closed (deny).
	// Default: open.
	OnInternalError string `json:"on_internal_error,omitempty" kong:"required,one_of=open|closed" default:"open"`

	// Leaves out all rate limit headers, Retry-After included, as Kong's own plugins do. The body of a denial still says
	// how long to wait. Default: false, headers are sent.
	HideClientHeaders bool `json:"hide_client_headers" kong:"required" default:"false"`

	// Shows clients the numbers of the limits that all tenants share (scopes global and endpoint) as it shows those of
	// their own. They appear in headers, in the body of a denial and to a tenant's token of the decision API. For configs
	// that have no other limits. Default: false, a shared limit is only named, on a denial that it causes.
	ShowSharedLimits bool `json:"show_shared_limits" kong:"required" default:"false"`

	// Also sends RateLimit-Limit, RateLimit-Remaining and RateLimit-Reset, as Kong's own rate-limiting plugin does.
	// Default: false.
	KongHeaders bool `json:"kong_headers" kong:"required" default:"false"`

	// Also sends X-RateLimit-Cost: the tokens that the request took when it arrived of the limit that the other headers
	// show. For a limit that settles this is the reservation. It is 0 on a denial. Default: false.
	ShowCost bool `json:"show_cost" kong:"required" default:"false"`

	// Which of a client's own limits RateLimit lists: binding, the one with the smallest share left, or all of them, that
	// one first and at most 16. On a 429 all lists those that deny. Default: all for a request with at most 4 own limits,
	// binding for others.
	//
	// Empty means absent.
	RateLimitHeader string `json:"ratelimit_header,omitempty" kong:"one_of=binding|all"`

	// Answers requests with what their tenant has used of its own limits, as JSON, in place of deciding about them: for a
	// route of its own, such as /ratelimit/usage, with the namespace and the limits of the configs whose limits it shows.
	// It spends nothing, and no request reaches an upstream. Default: false.
	UsageOnly bool `json:"usage_only" kong:"required" default:"false"`

	// Also sends Access-Control-Expose-Headers with the names of the rate limit headers, so that scripts of other origins
	// may read them in browsers. Kong's cors plugin replaces it where it has exposed_headers. Default: false.
	ExposeHeaders bool `json:"expose_headers" kong:"required" default:"false"`

	// Adds each decision to what Kong's own log plugins write, as rate_limit (result, policy, limit, remaining, source,
	// mode and others). It costs one question more per request. Default: false.
	LogDecisions bool `json:"log_decisions" kong:"required" default:"false"`

	// Asks Kong for the id of each request that is denied, or would be in shadow or log mode, for the denial record and
	// recent denials, which are found by it. The id is the one of Kong's own logs and of the response header
	// X-Kong-Request-Id. It costs one question more per denial, up to 18 % of it, and none where neither is recorded.
	// Default: true.
	DenialRequestID bool `json:"denial_request_id" kong:"required" default:"true"`

	// Asks Kong for the client's address of each request that is denied, or would be in shadow or log mode, for the denial
	// record, which has its hash. It costs one question more per denial where no rule of the config needs addresses, and
	// none where the denial record is off. Default: false.
	DenialIP bool `json:"denial_ip" kong:"required" default:"false"`

	// Asks Kong for the route of each request, so that metrics, the denial record and ratelimit top name the endpoint
	// whatever the limits are counted per. It costs one question more per request, in the write of the others; where the
	// plugin is configured on a route, none but one a minute. false leaves endpoints unnamed that no limit asks for.
	// Default: true.
	ObserveEndpoint bool `json:"observe_endpoint" kong:"required" default:"true"`

	// HTTP status code of a denial, from 400 to 599. Default: 429.
	ErrorCode int64 `json:"error_code,omitempty" kong:"required,between=400..599" default:"429"`

	// The message in the body of a denial, for clients that read the same field from Kong's own plugins. Default: API
	// rate limit exceeded.
	ErrorMessage string `json:"error_message,omitempty" kong:"required,len_max=1024" default:"API rate limit exceeded"`

	// Upper bound, in seconds, of a random delay that is added to Retry-After so that denied clients do not all return at
	// once. Default: 0 seconds, none is added.
	RetryAfterJitterMax int64 `json:"retry_after_jitter_max" kong:"required,between=0..86400" default:"0"`
}

// Tier is one plan and the limits of every tenant on it.
type Tier struct {
	// The name of the tier, as tier_from finds it, for instance enterprise. Required, at most 64 bytes.
	Name string `json:"name" kong:"required,len_max=64"`

	// The pool of redis_pools that has the counters of this tier's requests; default is the block redis. It does nothing
	// with strategy local. Default: default.
	RedisPool string `json:"redis_pool,omitempty" kong:"len_max=64"`

	// The limits of each tenant on this tier; all of them must pass. Default: none, the tier has no cap.
	Limits []Limit `json:"limits" kong:"required" default:""`

	// What tenants read in place of the name, for instance Enterprise plan. Default: the name.
	Title string `json:"title,omitempty" kong:"len_max=64"`

	// The price in words, for tenants to read, for instance "$499 a month, then $2 per 1,000 requests". Default: none.
	PriceText string `json:"price_text,omitempty" kong:"len_max=256"`
}

// Anonymous holds the limits of requests without a tenant. The zero value has none.
type Anonymous struct {
	// Limits of requests without a tenant, at least one. Their scope is ip, endpoint or global. Required; to let such
	// requests pass unlimited, set on_missing_tenant to skip instead.
	Limits []Limit `json:"limits" kong:"required,len_min=1" scope:"one_of=ip|endpoint|global"`
}

// Global holds the limits over all tenants together. The zero value has none.
type Global struct {
	// Limits over all tenants together, at least one. Their scope is global, endpoint or ip. Required.
	Limits []Limit `json:"limits" kong:"required,len_min=1" scope:"one_of=global|endpoint|ip"`
}

// Exemption names requests that no limit applies to. All fields that are given must match.
//
//kong:check {"at_least_one_of": ["tenant", "user", "tag", "cidr", "endpoint"]}
//kong:check {"conditional_at_least_one_of": {"if_field": "user", "if_match": {"required": true}, "then_at_least_one_of": ["tenant"], "then_err": "needs tenant beside it, because users of different tenants may have the same name"}}
type Exemption struct {
	// Only requests of this tenant, as tenant_from finds it; of a name of more than 128 bytes, the hash that metrics show.
	// Default: any tenant.
	Tenant string `json:"tenant,omitempty" kong:"match=^[^*]+$,len_max=128" kong_err:"must be the name of one tenant, in at most 128 bytes; * is no wildcard here" example:"acme"`

	// Only requests of this user of the tenant, as user_from finds it; tenant is required beside it. Default: any user.
	User string `json:"user,omitempty" kong:"match=^[^*]+$,len_max=128" kong_err:"must be the name of one user, in at most 128 bytes; * is no wildcard here" example:"u_42"`

	// Only requests whose consumer in Kong has this tag, written in full. The consumers of anonymous_consumers have none.
	// Default: any tags.
	Tag string `json:"tag,omitempty" kong:"match=^[^*]+$,len_max=128" kong_err:"must be one whole tag of a consumer, in at most 128 bytes; * is no wildcard here" example:"monitoring"`

	// Only requests from this network: the address that limits per ip count, behind the proxies that Kong trusts. An IPv6
	// address counts in full here, whatever ipv6_prefix_length is. Default: any address.
	CIDR string `json:"cidr,omitempty" kong:"match=^[0-9A-Fa-f:.]+/[1-9][0-9]*$,len_max=64" kong_err:"must be a network, such as 10.0.0.0/8, 192.0.2.1/32 or 2001:db8::/48; a length of 0 would exempt all addresses" example:"10.0.0.0/8"`

	// Only requests to this endpoint, as "METHOD /pattern"; {param} and a final * are wildcards, * stands for any method.
	// A path with an escape, ;, # or a backslash in it never matches: upstreams may read it as another. Default: any.
	Endpoint string `json:"endpoint,omitempty" kong:"match=^[A-Z*-]+ /[^ ]*$,len_max=1024" kong_err:"must be METHOD /pattern, such as GET /records/{id}, or * /pattern for any method" example:"GET /healthz"`
}
