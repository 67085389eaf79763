package schema

// Limit holds one named limit: its quantity, window, algorithm and scope.
//
//kong:check {"conditional": {"if_field": "algorithm", "if_match": {"eq": "sliding_log"}, "then_field": "limit", "then_match": {"between": [1, 10000]}, "then_err": "must be at most 10000, because a sliding_log keeps an entry for every request"}}
//kong:check {"conditional": {"if_field": "burst", "if_match": {"required": true}, "then_field": "algorithm", "then_match": {"one_of": ["token_bucket", "leaky_bucket"]}, "then_err": "must be token_bucket or leaky_bucket, because only these have a burst"}}
//kong:check {"conditional": {"if_field": "hard_threshold_pct", "if_match": {"required": true}, "then_field": "soft_only", "then_match": {"eq": false}, "then_err": "must not be true beside hard_threshold_pct, because a limit that never denies has no hard threshold"}}
//kong:check {"only_one_of": ["window_size", "period", "max_duration"]}
//kong:check {"conditional_at_least_one_of": {"if_field": "algorithm", "if_match": {"eq": "concurrency"}, "then_at_least_one_of": ["max_duration"], "then_err": "needs max_duration with concurrency, in place of window_size: the seconds after which a request counts as ended, whatever has become of it"}}
//kong:check {"conditional": {"if_field": "period", "if_match": {"required": true}, "then_field": "algorithm", "then_match": {"one_of": ["fixed_window"]}, "then_err": "must be fixed_window beside period, because only this counts by the calendar; for another algorithm give window_size in place of period"}}
//kong:check {"conditional": {"if_field": "max_duration", "if_match": {"required": true}, "then_field": "algorithm", "then_match": {"one_of": ["concurrency"]}, "then_err": "must be concurrency beside max_duration, because only this counts requests while they last; else give window_size or period"}}
//kong:check {"conditional_at_least_one_of": {"if_field": "time_zone", "if_match": {"required": true}, "then_at_least_one_of": ["period"], "then_err": "needs period beside it, because only periods of the calendar begin in a time zone"}}
//kong:check {"conditional": {"if_field": "algorithm", "if_match": {"eq": "concurrency"}, "then_field": "limit", "then_match": {"between": [1, 10000]}, "then_err": "must be at most 10000, because concurrency keeps an entry for every request in flight"}}
//kong:check {"conditional": {"if_field": "soft_threshold_pct", "if_match": {"required": true}, "then_field": "algorithm", "then_match": {"one_of": ["token_bucket", "leaky_bucket", "fixed_window", "sliding_window", "sliding_log"]}, "then_err": "must not be concurrency beside soft_threshold_pct, because that has no warning zone"}}
//kong:check {"conditional": {"if_field": "hard_threshold_pct", "if_match": {"required": true}, "then_field": "algorithm", "then_match": {"one_of": ["token_bucket", "leaky_bucket", "fixed_window", "sliding_window", "sliding_log"]}, "then_err": "must not be concurrency beside hard_threshold_pct, because that has no warning zone"}}
//kong:check {"conditional": {"if_field": "algorithm", "if_match": {"eq": "concurrency"}, "then_field": "soft_only", "then_match": {"eq": false}, "then_err": "must not be true with concurrency: to try a limit, set mode to shadow"}}
//kong:check {"conditional": {"if_field": "algorithm", "if_match": {"eq": "concurrency"}, "then_field": "accuracy", "then_match": {"one_of": ["exact"]}, "then_err": "must be exact, or left out, with concurrency, because no node can take room for requests ahead of need"}}
//kong:check {"conditional": {"if_field": "algorithm", "if_match": {"eq": "concurrency"}, "then_field": "cost", "then_match": {"between": [0, 1]}, "then_err": "must be 0 or 1 with concurrency, because a request counts once while it lasts"}}
//kong:check {"conditional": {"if_field": "unit", "if_match": {"required": true}, "then_field": "algorithm", "then_match": {"one_of": ["token_bucket", "leaky_bucket", "fixed_window", "sliding_window", "sliding_log"]}, "then_err": "must not be concurrency beside unit, because that counts requests"}}
type Limit struct {
	// The name of the limit, shown in response headers and part of the counter's key: 1 to 64 letters, digits, dots,
	// dashes or underscores. Limits with different names all apply. Required.
	Name string `json:"name" kong:"required,match=^[A-Za-z0-9_.-]+$,len_max=64" kong_err:"must be 1 to 64 letters, digits, dots, dashes or underscores" example:"daily"`

	// What the limit is counted per: tenant, user, credential, ip, endpoint, global, tenant+endpoint or user+endpoint.
	// Required.
	Scope string `json:"scope" kong:"required,one_of=tenant|user|credential|ip|endpoint|global|tenant+endpoint|user+endpoint"`

	// The requests that the limit covers, as "METHOD /pattern"; {param} and a final * are wildcards, * stands for any
	// method. Default: all requests, and for the scopes with endpoint each route counts on its own.
	Endpoint string `json:"endpoint,omitempty" kong:"match=^[A-Z*-]+ /[^ ]*$,len_max=1024" kong_err:"must be METHOD /pattern, such as GET /records/{id}, or * /pattern for any method" alias:"endpointPattern" example:"POST /records"`

	// How many tokens a window allows; a request costs 1 token unless costs says otherwise. From 1 to 10^12 tokens. For
	// concurrency: how many requests at once, from 1 to 10000. Required.
	Limit int64 `json:"limit" kong:"required,between=1..1000000000000" unit:"tokens" example:"1000"`

	// What the limit counts: usd for millionths of a US dollar, so that a limit of 20000000 is 20 dollars. Default: tokens
	// or requests.
	//
	// Empty means absent.
	Unit string `json:"unit,omitempty" kong:"one_of=usd"`

	// The length of the window in seconds, from 1 second to 31622400 seconds (366 days). Required, unless period or
	// max_duration is given.
	//
	// Zero means absent.
	WindowSize int64 `json:"window_size,omitempty" kong:"between=1..31622400" unit:"seconds" flag:"window" example:"60"`

	// How requests are counted. token_bucket allows bursts and refills evenly, leaky_bucket is strictly even, fixed_window
	// is exact per aligned window (for quotas that are billed), sliding_window approximates, sliding_log is exact for
	// limits up to 10000, concurrency counts requests while they last. Default: token_bucket.
	Algorithm string `json:"algorithm,omitempty" kong:"required,one_of=token_bucket|leaky_bucket|fixed_window|sliding_window|sliding_log|concurrency" default:"token_bucket"`

	// Counts per day, week, month, quarter or year of the calendar in place of a window_size, for fixed_window only.
	// Default: none, window_size is the window.
	//
	// Empty means absent.
	Period string `json:"period,omitempty" kong:"one_of=day|week|month|quarter|year"`

	// The IANA name of the time zone in which periods begin, such as Europe/Berlin. A limit per tenant follows the time
	// zone of the tenant's row in the database if that has one. Default: UTC.
	//
	// Empty means absent.
	TimeZone string `json:"time_zone,omitempty" kong:"as=Tenant.time_zone" unit:"name" example:"Europe/Berlin"`

	// Where in the calendar a period begins, such as day 15 for months that are billed on the 15th. Default: absent, the
	// first midnight of the day, of the week's Monday, or of the first day of the month, the quarter or the year.
	//
	// Nil means absent.
	Anchor *Anchor `json:"anchor,omitempty"`

	// For concurrency: how long a request holds its slot at most, in seconds, from 1 to 86400. A slot is free when the
	// response has been sent or this time has passed. Default: none; concurrency needs it.
	//
	// Zero means absent.
	MaxDuration int64 `json:"max_duration,omitempty" kong:"between=1..86400" unit:"seconds" example:"600"`

	// The capacity of the bucket in tokens, from 1 to 10^12, for token_bucket and leaky_bucket only. Default: the limit
	// itself for token_bucket, 1 token for leaky_bucket.
	//
	// Zero means absent; Capacity resolves it.
	Burst int64 `json:"burst,omitempty" kong:"between=1..1000000000000" unit:"tokens"`

	// Usage in percent of the limit (of the burst for buckets) above which requests still pass but carry a warning header
	// and count as soft throttled. From 1 to 1000 percent. Default: none, no warning zone.
	//
	// Zero means absent.
	SoftThresholdPct int64 `json:"soft_threshold_pct,omitempty" kong:"between=1..1000" unit:"percent"`

	// Usage in percent of the limit (of the burst for buckets) above which requests are denied when soft_threshold_pct is
	// set. From 100 to 1000 percent. Default: 100 percent.
	//
	// Zero means absent.
	HardThresholdPct int64 `json:"hard_threshold_pct,omitempty" kong:"between=100..1000" unit:"percent"`

	// Warns above 100 percent of the limit, but never denies. Default: false, the limit is enforced.
	SoftOnly bool `json:"soft_only,omitempty" kong:"required" default:"false"`

	// What this limit does: enforce, shadow (decide and record but never deny) or log (shadow, and log each request that
	// would have been denied). Default: the mode of the whole config.
	//
	// Empty means absent.
	Mode string `json:"mode,omitempty" kong:"one_of=enforce|shadow|log"`

	// What a request costs under this limit in tokens, whatever costs and cost_header say. From 0 (requests are free here)
	// to 10^9 tokens. Default: the cost of the request.
	//
	// Nil means absent, which differs from 0.
	Cost *int64 `json:"cost,omitempty" kong:"between=0..1000000000" unit:"tokens"`

	// What this limit does while Redis cannot be reached: open (admit), closed (deny) or local (count in this process).
	// Default: the fail_mode of the whole config.
	//
	// Empty means absent.
	FailMode string `json:"fail_mode,omitempty" kong:"one_of=open|closed|local" alias:"failMode"`

	// Whether nodes may take tokens of this limit from Redis ahead of need (leased) or ask for every request (exact).
	// leased never admits more than the limit, and at most 2 percent fewer; only token_bucket and fixed_window are leased,
	// from a capacity (burst, else limit) of 500 on. Default: the accuracy of the whole config.
	//
	// Empty means absent.
	Accuracy string `json:"accuracy,omitempty" kong:"one_of=leased|exact"`

	// What the limit is for, which clients read where it denies their requests: at most 200 bytes without control
	// characters. Default: nothing.
	Description string `json:"description,omitempty" kong:"len_max=200" kong_err:"must have at most 200 bytes, without control characters" unit:"text" example:"Protects the nightly import."`

	// Charges what a request really used: the limit takes a reservation when the request arrives, and settles it after
	// the response. For token_bucket and fixed_window; such a limit is exact. It needs the plugin tenant-rate-settling on
	// the same routes. Default: absent, a request costs what is known when it arrives.
	//
	// Nil means absent.
	Settle *Settle `json:"settle,omitempty"`

	// Counts only the calls of some models, by the model that answered; settle is required beside it. A request that
	// states another model reserves nothing, one whose model is unknown reserves, and gets that back if the answer does
	// not match. Default: absent, all requests.
	//
	// Nil means absent.
	Match *Match `json:"match,omitempty"`

	// Divides the limit among the tenants that spend from its bucket, by the weights of their tiers: while they demand
	// more than it allows, none can take the share of another. For the scopes global and endpoint with token_bucket, at
	// least 10 tokens a second and a window below an hour. Default: absent, who comes first is served first.
	//
	// Nil means absent.
	Fair *Fair `json:"fair,omitempty"`
}
