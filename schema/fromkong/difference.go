package fromkong

// Difference names a way in which a converted config does not work as before.
type Difference string

// The differences. Each has its text in differences.
const (
	FreshCounters        Difference = "fresh-counters"
	Headers              Difference = "headers"
	Body                 Difference = "body"
	DenialsSpend         Difference = "denials-spend"
	DenialsSpendAdvanced Difference = "denials-spend-advanced"
	CheckThenCount       Difference = "check-then-count"
	SyncRate             Difference = "sync-rate"
	SyncRateNever        Difference = "sync-rate-never"
	FaultTolerant        Difference = "fault-tolerant"
	NotFaultTolerant     Difference = "not-fault-tolerant"
	LocalFallback        Difference = "local-fallback"
	ProcessMemory        Difference = "process-memory"
	ClusterToRedis       Difference = "cluster-to-redis"
	RedisTimeouts        Difference = "redis-timeouts"
	RedisVerify          Difference = "redis-verify"
	RedisTuning          Difference = "redis-tuning"
	SentinelRole         Difference = "sentinel-role"
	HeaderValues         Difference = "header-values"
	PathSlash            Difference = "path-slash"
	TenantIDs            Difference = "tenant-ids"
	CredentialNoConsumer Difference = "credential-without-consumer"
	SlidingEstimate      Difference = "sliding-estimate"
	CalendarWindows      Difference = "calendar-windows"
	RoundedLimit         Difference = "rounded-limit"
	Dictionary           Difference = "dictionary"
	GroupOverride        Difference = "group-override"
	ResponseAtArrival    Difference = "response-at-arrival"
	ResponseConcurrent   Difference = "response-concurrent"
	ResponseHeaders      Difference = "response-headers"
	EntryFields          Difference = "entry-fields"
	SharedConfig         Difference = "shared-config"
	Rewritten            Difference = "rewritten"
)

// Text describes a difference.
type Text struct {
	ID   Difference `json:"id"`
	What string     `json:"what"` // in a few words
	Kong string     `json:"kong"` // what Kong's plugin does
	Here string     `json:"here"` // what this plugin does, and what to set for something else
}

// Differences returns the texts of all differences, in the order of reports.
func Differences() []Text { return differences[:] }

var differences = [...]Text{
	{
		FreshCounters, "counters at the change",
		"Counters are in Kong's memory, Redis or database, under keys of its own.",
		"Each limit starts with an empty counter. After --side-by-side the shadow's counters go on, because the namespace " +
			"stays the same.",
	},
	{
		Headers, "rate limit headers",
		"X-RateLimit-Limit-Minute and X-RateLimit-Remaining-Minute for each window, beside RateLimit-Limit, -Remaining " +
			"and -Reset.",
		"X-RateLimit-Limit, -Remaining and -Reset of the limit that binds, and all limits in RateLimit-Policy and " +
			"RateLimit. kong_headers: true keeps RateLimit-Limit, -Remaining and -Reset.",
	},
	{
		Body, "body of a denial",
		"JSON, HTML, XML or plain text by the Accept header, with message and request_id; gRPC calls get HTTP 429.",
		"application/problem+json with the same message, and the limit and the wait beside it; gRPC calls get HTTP 200 " +
			"with grpc-status 8.",
	},
	{
		DenialsSpend, "what denied requests spend",
		"With policy redis and sync_rate -1, a denied request counts in every window: one denied by the minute also uses " +
			"up the day.",
		"A denied request spends nothing in any window.",
	},
	{
		DenialsSpendAdvanced, "what denied requests spend",
		"Denied requests count too (for sliding windows unless disable_penalty is true), so a client that does not slow " +
			"down stays denied.",
		"A denied request spends nothing, as with disable_penalty: true.",
	},
	{
		CheckThenCount, "concurrent requests",
		"The counter is read first and increased after the answer, so concurrent requests can exceed the limit.",
		"Checking and counting are one step: no request exceeds the limit.",
	},
	{
		SyncRate, "sync_rate",
		"Nodes count on their own and exchange counters every sync_rate seconds: together they can exceed the limit.",
		"Nodes lease tokens ahead of need (accuracy: leased): never above the limit, at most 2 percent below; limits under " +
			"500 and sliding windows are exact.",
	},
	{
		SyncRateNever, "sync_rate -1",
		"Counters are never exchanged: each node has the whole limit, though the strategy names a shared store.",
		"strategy: local, which is the same. For one limit over all nodes set strategy: redis.",
	},
	{
		FaultTolerant, "while Redis does not answer",
		"fault_tolerant: true admits every request.",
		"fail_mode: open admits every request too, without waiting for Redis, and charges them afterwards. The default, " +
			"local, would go on limiting.",
	},
	{
		NotFaultTolerant, "while Redis does not answer",
		"fault_tolerant: false answers 500.",
		"fail_mode: closed answers 503 with a wait; closed_status: 500 keeps the status.",
	},
	{
		LocalFallback, "while Redis does not answer",
		"Each node goes on with counters of its own, and admits the whole limit.",
		"fail_mode: local: the live nodes divide 70 percent of the limit (local_share_pct).",
	},
	{
		ProcessMemory, "counters in memory",
		"Counters are in Kong's shared memory, and survive kong reload.",
		"Counters are in the plugin's process, which kong reload replaces: they start again.",
	},
	{
		ClusterToRedis, "counters in Kong's database",
		"policy or strategy cluster counts in Postgres.",
		"Counters are in the Redis that --redis names.",
	},
	{
		RedisTimeouts, "timeouts of Redis",
		"2000 ms, for connecting, sending and reading.",
		"100 ms to connect, 50 ms to send and to read. Other values than Kong's default are kept.",
	},
	{
		RedisVerify, "certificate of Redis",
		"ssl_verify is false by default, in recent versions true.",
		"ssl_verify is true by default: connecting fails if the certificate is not valid. ssl_verify: false keeps " +
			"the old way.",
	},
	{
		RedisTuning, "tuning of Redis connections",
		"keepalive_backlog, cluster_max_redirections and redis_proxy_type.",
		"These have no counterpart and are left out.",
	},
	{
		SentinelRole, "sentinel_role",
		"Kong can be given a replica of Redis.",
		"The master is always used.",
	},
	{
		HeaderValues, "header with several values",
		"limit_by or identifier header takes the first value of the header, and an empty one as a value.",
		"A request with several values, or a comma, gets 400; an empty header counts as missing. Clients can choose the " +
			"value in both, so something in front of Kong should set it.",
	},
	{
		PathSlash, "path with a slash at its end",
		"/a/ is another path than /a, and is counted by address.",
		"/a/ and /a are one endpoint.",
	},
	{
		TenantIDs, "names of tenants",
		"Consumers are counted by their id.",
		"So are tenants (tenant_from: [consumer.id]). To read names in metrics and write them in policies, set tenant_from " +
			"to [consumer.custom_id, consumer.username], if each consumer has one that is unique.",
	},
	{
		CredentialNoConsumer, "credential without a consumer",
		"A request without a consumer, but with a credential, is counted by the credential.",
		"It is counted by its address.",
	},
	{
		SlidingEstimate, "sliding windows",
		"The rate is estimated from the counters of two windows.",
		"sliding_window estimates in the same way, in whole numbers. A denial can come a request earlier or later.",
	},
	{
		CalendarWindows, "month and year",
		"Windows of calendar months and years in UTC.",
		"Windows of 30 and 365 days since 1970 (--approximate).",
	},
	{
		RoundedLimit, "limit with a fraction",
		"A limit of 2.5 admits 3 requests.",
		"The limit is written as 3, which is the same.",
	},
	{
		Dictionary, "shared memory of nginx",
		"dictionary_name and lock_dictionary_name name a zone of shared memory.",
		"The plugin has none; they are left out.",
	},
	{
		GroupOverride, "overrides of consumer groups",
		"Overrides of a consumer group change some fields of the plugin (deprecated since Kong 3.4).",
		"The group gets a plugin entry with all fields, which needs Kong 3.4 or later. consumer_group_policy_overrides is " +
			"removed from _info.",
	},
	{
		ResponseAtArrival, "limits that responses spend",
		"A request passes to the upstream, and its response becomes a 429 without a body if it spends from an empty limit; " +
			"with block_on_first_violation every request is denied before.",
		"A request is denied when it arrives, if a limit is used up, whatever it would spend.",
	},
	{
		ResponseConcurrent, "requests in flight",
		"A request counts when its response has been sent.",
		"A request takes 1 token of each limit when it arrives. tenant-rate-settling, which kong.conf must list, settles " +
			"it to what the response says.",
	},
	{
		ResponseHeaders, "headers of response limits",
		"The upstream receives X-RateLimit-Remaining-<name>, and the client does not see the header that spends.",
		"The upstream receives no rate limit headers, and the client sees the header that spends.",
	},
	{
		EntryFields, "fields of the entry",
		"id, and instance_name of an entry that stays.",
		"The new entry has none: each must be unique.",
	},
	{
		SharedConfig, "shared configs",
		"The entry takes its config, or a part, from _plugin_configs or partials.",
		"The new entry has its config in full. The shared one stays in the file.",
	},
	{
		Rewritten, "layout of the file",
		"The file has entries in a layout that cannot be replaced line by line (JSON, or a list in one line).",
		"The whole file is written anew: it holds the same, but empty lines and the indentation are lost, and comments may " +
			"move.",
	},
}
