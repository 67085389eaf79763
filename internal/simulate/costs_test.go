package simulate

// The measured costs that the report multiplies. They are those of one machine, two shared cores of an AMD
// EPYC with Redis 7.0.15; docs/benchmarks.md and the README of package redis say how to measure yours.
const (
	// commandCost is the CPU time of Redis for a command with one bucket, in µs, and bucketCost that of each further one:
	// 5.2 with one and 10.8 with four, of 64 callers (docs/benchmarks.md, "Taking and settling, in the store").
	commandCost, bucketCost = 5.2, 1.87
	// pingCost is that of a PING, in µs (plugin/bucket/redis/README.md, "Redis CPU").
	pingCost = 0.3

	// eventCost is the CPU time of a node for a request that is answered from a lease, in µs, and callCost what a call of
	// Redis adds: 11.7 and 25.2 − 11.7, at 16 connections (docs/benchmarks.md, "Events through the plugin's socket").
	eventCost, callCost = 11.7, 13.5
)

// redisCost returns the CPU time of Redis for a command with so many buckets, in µs.
func redisCost(buckets int) float64 {
	if buckets == 0 {
		return pingCost
	}
	return commandCost + bucketCost*float64(buckets-1)
}
