// Code generated from the declarations in this package by go generate; DO NOT EDIT.

package schema

var fieldsOfPolicy = []Field[Policy]{
	{Name: "namespace", in: func(row *Policy) any { return &row.Namespace }},
	{Name: "tier", Aliases: "orgTier", Example: "enterprise", in: func(row *Policy) any { return &row.Tier }},
	{Name: "tenant", Aliases: "orgId,org", Example: "acme", in: func(row *Policy) any { return &row.Tenant }},
	{Name: "user", Aliases: "userId", Example: "u_42", in: func(row *Policy) any { return &row.User }},
	{Name: "credential", in: func(row *Policy) any { return &row.Credential }},
	{Name: "ip", Unit: "address", Example: "203.0.113.0/24", in: func(row *Policy) any { return &row.IP }},
	{Name: "for", in: func(row *Policy) any { return &row.For }},
	{Name: "name", Example: "daily", in: func(row *Policy) any { return &row.Limit.Name }},
	{Name: "scope", in: func(row *Policy) any { return &row.Limit.Scope }},
	{Name: "endpoint", Aliases: "endpointPattern", Example: "POST /records", in: func(row *Policy) any { return &row.Limit.Endpoint }},
	{Name: "limit", Unit: "tokens", Example: "1000", in: func(row *Policy) any { return &row.Limit.Limit }},
	{Name: "window_size", Flag: "window", Unit: "seconds", Example: "60", in: func(row *Policy) any { return &row.Limit.WindowSize }},
	{Name: "algorithm", in: func(row *Policy) any { return &row.Limit.Algorithm }},
	{Name: "burst", Unit: "tokens", in: func(row *Policy) any { return &row.Limit.Burst }},
	{Name: "soft_threshold_pct", Unit: "percent", in: func(row *Policy) any { return &row.Limit.SoftThresholdPct }},
	{Name: "hard_threshold_pct", Unit: "percent", in: func(row *Policy) any { return &row.Limit.HardThresholdPct }},
	{Name: "soft_only", in: func(row *Policy) any { return &row.Limit.SoftOnly }},
	{Name: "mode", in: func(row *Policy) any { return &row.Limit.Mode }},
	{Name: "cost", Unit: "tokens", in: func(row *Policy) any { return &row.Limit.Cost }},
	{Name: "fail_mode", Aliases: "failMode", in: func(row *Policy) any { return &row.Limit.FailMode }},
	{Name: "accuracy", in: func(row *Policy) any { return &row.Limit.Accuracy }},
	{Name: "description", Unit: "text", Example: "Protects the nightly import.", in: func(row *Policy) any { return &row.Limit.Description }},
	{Name: "settle", in: func(row *Policy) any { return &row.Limit.Settle }},
	{Name: "fair", in: func(row *Policy) any { return &row.Limit.Fair }},
	{Name: "public_note", Unit: "text", Example: "Agreed until the end of the year.", in: func(row *Policy) any { return &row.PublicNote }},
}

var fieldsOfOverride = []Field[Override]{
	{Name: "kind", in: func(row *Override) any { return &row.Kind }},
	{Name: "tenant", Example: "acme", in: func(row *Override) any { return &row.Tenant }},
	{Name: "user", Aliases: "userId", Example: "u_42", in: func(row *Override) any { return &row.User }},
	{Name: "credential", in: func(row *Override) any { return &row.Credential }},
	{Name: "ip", Unit: "address", Example: "2001:db8::/64", in: func(row *Override) any { return &row.IP }},
	{Name: "tag", Example: "monitoring", in: func(row *Override) any { return &row.Tag }},
	{Name: "endpoint", Aliases: "endpointPattern", Example: "POST /records", in: func(row *Override) any { return &row.Endpoint }},
	{Name: "policy", Example: "daily", in: func(row *Override) any { return &row.Policy }},
	{Name: "limit", Unit: "tokens", in: func(row *Override) any { return &row.Limit }},
	{Name: "window_size", Flag: "window", Unit: "seconds", in: func(row *Override) any { return &row.WindowSize }},
	{Name: "burst", Unit: "tokens", in: func(row *Override) any { return &row.Burst }},
	{Name: "factor", Unit: "thousandths", Example: "1.5", in: func(row *Override) any { return &row.Factor }},
	{Name: "reason", Example: "launch week", in: func(row *Override) any { return &row.Reason }},
	{Name: "author", in: func(row *Override) any { return &row.Author }},
	{Name: "starts_at", in: func(row *Override) any { return &row.StartsAt }},
	{Name: "expires_at", in: func(row *Override) any { return &row.ExpiresAt }},
	{Name: "permanent", in: func(row *Override) any { return &row.Permanent }},
	{Name: "source", in: func(row *Override) any { return &row.Source }},
	{Name: "public_note", Unit: "text", Example: "Agreed until the end of the year.", in: func(row *Override) any { return &row.PublicNote }},
}

var fieldsOfTenant = []Field[Tenant]{
	{Name: "id", in: func(row *Tenant) any { return &row.ID }},
	{Name: "tier", in: func(row *Tenant) any { return &row.Tier }},
	{Name: "time_zone", Unit: "name", in: func(row *Tenant) any { return &row.TimeZone }},
}

var fieldsOfCost = []Field[Cost]{
	{Name: "namespace", in: func(row *Cost) any { return &row.Namespace }},
	{Name: "endpoint", Example: "POST /exports", in: func(row *Cost) any { return &row.Endpoint }},
	{Name: "cost", Unit: "tokens", Example: "50", in: func(row *Cost) any { return &row.Cost }},
}

var fieldsOfSettle = []Field[Settle]{
	{Name: "sources", in: func(row *Settle) any { return &row.Sources }},
	{Name: "reserve", in: func(row *Settle) any { return &row.Reserve }},
	{Name: "reserve_header", in: func(row *Settle) any { return &row.ReserveHeader }},
	{Name: "reserve_max", in: func(row *Settle) any { return &row.ReserveMax }},
	{Name: "refund_on", in: func(row *Settle) any { return &row.RefundOn }},
	{Name: "timeout", in: func(row *Settle) any { return &row.Timeout }},
}

var fieldsOfSettleSource = []Field[SettleSource]{
	{Name: "from", in: func(row *SettleSource) any { return &row.From }},
	{Name: "weight", in: func(row *SettleSource) any { return &row.Weight }},
}

var fieldsOfFair = []Field[Fair]{
	{Name: "weights", in: func(row *Fair) any { return &row.Weights }},
	{Name: "default", in: func(row *Fair) any { return &row.Default }},
}
