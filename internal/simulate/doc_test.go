// Package simulate runs a fleet of nodes by a virtual clock: what a set of limits costs, admits and denies before any
// of it exists. It is a discrete-event simulation in one goroutine at a time, and repeats by its seed.
//
// Nothing that decides is written twice. Each node has the path of a request (package admit), with the leases (package
// lease), circuit breakers, fail modes and charges (package outage), and the clock (package clock) of a real one. What
// is simulated is what they stand on: a [network] with latencies and queues in front of masters, each of which is a
// store of package memory; and a load of tenants by Zipf's law. There are no faults.
//
// A call of a master waits, and the code that calls is written to wait. So each request, and each loop of a node, is a
// coroutine: while it waits, the others of its node go on.
//
// What is counted is compared with two references. The bound of each limit over any interval shows what was admitted
// too much: see [ledger]. A single store without nodes and latencies, which gets the same requests at the same
// instants, shows what was denied too much.
//
// The package has only tests, of the table of docs/sizing.md and of what it rests on. The costs of a command are
// measured by benchmarks (docs/benchmarks.md).
package simulate
