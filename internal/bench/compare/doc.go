// Package compare measures the cost of a decision: from a lease, in memory and in Redis, and with other Go libraries,
// on one machine and in one run. It has benchmarks, and a test that every limiter in them limits.
//
//   - BenchmarkHotKey and BenchmarkZipf: time, CPU, allocations and store calls of a decision, for one tenant
//     and for 100,000 of very different popularity.
//   - BenchmarkAdmit: the whole path of a request, from facts to headers.
//   - BenchmarkUsage: the same without usage and with it.
//   - BenchmarkSettle: a take and a settlement in the store.
//
// Compare numbers of one run only. The comments of the entrants, and docs/benchmarks.md, describe what each of them
// does. Package spec measures decisions over the socket, package redis the cost for Redis itself.
package compare
