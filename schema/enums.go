package schema

// Values of Config.OnMissingTenant.
const (
	MissingTenantLimitByIP = "limit_by_ip" // count by client address under the anonymous limits
	MissingTenantDeny      = "deny"        // refuse the request
	MissingTenantSkip      = "skip"        // only the global limits apply
)

// Values of Config.OnMissingUser.
const (
	MissingUserCredential = "credential" // count by credential, by ip when there is none
	MissingUserIP         = "ip"         // count by client address
	MissingUserSkip       = "skip"       // the limit does not apply
	MissingUserDeny       = "deny"       // refuse the request
)

// Values of Config.Mode and Limit.Mode.
const (
	ModeEnforce = "enforce" // deny what exceeds the limit
	ModeShadow  = "shadow"  // decide and record, never deny
	ModeLog     = "log"     // like shadow, and log each would-be denial
)

// Values of Limit.Scope.
const (
	ScopeTenant         = "tenant"
	ScopeUser           = "user"
	ScopeCredential     = "credential"
	ScopeIP             = "ip"
	ScopeEndpoint       = "endpoint"
	ScopeGlobal         = "global"
	ScopeTenantEndpoint = "tenant+endpoint"
	ScopeUserEndpoint   = "user+endpoint"
)

// Values of Limit.Algorithm.
const (
	AlgorithmTokenBucket   = "token_bucket"
	AlgorithmLeakyBucket   = "leaky_bucket"
	AlgorithmFixedWindow   = "fixed_window"
	AlgorithmSlidingWindow = "sliding_window"
	AlgorithmSlidingLog    = "sliding_log"
)

// Values of Config.Strategy.
const (
	StrategyLocal = "local" // counters in the plugin's own process
	StrategyRedis = "redis" // counters in Redis, shared by all nodes
)

// Values of Config.FailMode and Limit.FailMode; Config.OnConfigFault and Config.OnInternalError take the first two.
const (
	FailOpen   = "open"   // admit
	FailClosed = "closed" // refuse
	FailLocal  = "local"  // count in this process
)

// Values of Config.Accuracy and Limit.Accuracy.
const (
	AccuracyLeased = "leased" // nodes take tokens of busy limits from Redis ahead of need
	AccuracyExact  = "exact"  // every request asks Redis
)

// Which limits are leased, if their accuracy says so and their algorithm is token_bucket or fixed_window.
const (
	// LeastLeased is the smallest capacity, in tokens, of a limit that is leased, where no more than the usual 2 percent
	// of a limit may be out on lease.
	LeastLeased = 500
	// LeasedCostPct is the largest cost, in percent of a limit's capacity, that a token_bucket is sure to admit when it
	// is full and leased: at most the rest, 5 percent, may ever be out on lease.
	LeasedCostPct = 95
)
