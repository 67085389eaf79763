package schema

// Values of Config.OnMissingTenant.
const (
	MissingTenantLimitByIP = "limit_by_ip" // count by client address under the anonymous limits
	MissingTenantDeny      = "deny"        // deny the request
	MissingTenantSkip      = "skip"        // only the global limits apply
)

// Values of Config.OnMissingUser.
const (
	MissingUserCredential = "credential" // count by credential, or by ip without one
	MissingUserIP         = "ip"         // count by client address
	MissingUserSkip       = "skip"       // the limit does not apply
	MissingUserDeny       = "deny"       // deny the request
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
	AlgorithmConcurrency   = "concurrency"
)

// Values of Limit.Period.
const (
	PeriodDay     = "day"
	PeriodWeek    = "week"
	PeriodMonth   = "month"
	PeriodQuarter = "quarter"
	PeriodYear    = "year"
)

// Values of Config.Strategy.
const (
	StrategyLocal = "local" // counters in the plugin's own process
	StrategyRedis = "redis" // counters in Redis, shared by all nodes
)

// Values of Config.RateLimitHeader.
const (
	ListBinding = "binding" // RateLimit has the limit that binds
	ListAll     = "all"     // RateLimit has all limits of the client
)

// Values of Config.FailMode and Limit.FailMode; Config.OnConfigFault and Config.OnInternalError take the first two.
const (
	FailOpen   = "open"   // admit
	FailClosed = "closed" // deny
	FailLocal  = "local"  // count in this process
)

// Values of Config.Accuracy and Limit.Accuracy.
const (
	AccuracyLeased = "leased" // nodes take tokens of busy limits from Redis ahead of need
	AccuracyExact  = "exact"  // every request asks Redis
)

// Bounds of limits that are leased, if their accuracy is leased and their algorithm token_bucket or fixed_window.
const (
	// LeastLeased is the smallest capacity, in tokens, of a leased limit with the default lease share of 2 percent.
	LeastLeased = 500
	// LeasedCostPct is the largest cost, in percent of the capacity, that a full and leased token_bucket always admits.
	// At most the other 5 percent may be out on lease.
	LeasedCostPct = 95
)
