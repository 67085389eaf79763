// Package compare measures what a decision costs: ours from a lease, in memory and in Redis, and beside them what a Go
// programmer would otherwise use, on one machine and in one run. It holds benchmarks only, and a test that every
// limiter in them does the job.
//
//   - BenchmarkHotKey and BenchmarkZipf: time, CPU, allocations and store calls of a decision, for a tenant
//     and for 100,000 of which some are far busier than others.
//   - BenchmarkAdmit: the whole path of a request, from facts to headers.
//   - BenchmarkLatency: how long callers wait that all decide as fast as they can.
//   - BenchmarkTraffic and BenchmarkRefusals: what paced traffic of one hot tenant, and a denied flood, cost Redis.
//
// Numbers of one run are to be compared with each other, never with another run's. What the others do and do not do is
// documented where each is built, and in notes.md, which package benchtable puts above the tables. What a decision
// costs over the socket is measured in spec, what it costs Redis itself in package redis.
package compare
