package metrics

// Shares holds the numbers of limits that are shared fairly, those of other nodes not included.
type Shares struct {
	Limits  int    // buckets with demand at this node
	Leads   int    // buckets that this node divides, for all nodes
	Tenants int    // that demand more of a bucket than their caps, once for each
	Failed  uint64 // exchanges with other nodes, since the process started
}

var sharesNumbers = []number[Shares]{
	gauge(
		"fair_share_limits",
		"Buckets that tenants share fairly and demand tokens of at this node.",
		func(s *Shares) float64 { return float64(s.Limits) },
	),
	gauge(
		"fair_share_leading",
		"Buckets that this node divides for all nodes: each bucket has one such node.",
		func(s *Shares) float64 { return float64(s.Leads) },
	),
	gauge(
		"fair_share_capped_tenants",
		"Tenants that demand more of a shared bucket at this node than their share, once for each bucket.",
		func(s *Shares) float64 { return float64(s.Tenants) },
	),
	counter(
		"fair_share_failed_exchanges_total",
		"Exchanges of demand and caps with the other nodes that failed: after a second without caps the bucket alone decides.",
		func(s *Shares) float64 { return float64(s.Failed) },
	),
}
