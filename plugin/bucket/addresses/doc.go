// Package addresses bounds how many keys the addresses of clients make in a store that all nodes share. A client that
// sends requests from many addresses, or seems to, gets a bucket for each: without a bound they fill the store, and
// then every limit that fails closed denies.
//
// # What is counted
//
// The subjects that a client chooses and that are not verified: addresses, with a limit of scope ip, in place of a
// tenant, or in place of a user or credential. Tenants, users and credentials are not counted: Kong has verified them,
// or a header of trusted_headers names them. Endpoints are named by the configuration.
//
// # When an address is new
//
// A [Budget] belongs to one node and one central store. It keeps the addresses whose keys this node has written, by 64
// bits of a hash, until those keys have expired there, which follows from the store's answers. An address that it does
// not keep is new to this node: it may have a key by another node, or from before a restart, and is counted all the
// same. The table has a fixed size, so an address in it costs no memory and one lookup under the lock of a small set.
//
// A new address gets a bucket of its own, as any other, while there is room in the table and in a rate: so many new
// ones a second, and ten seconds' worth at once. A flood does not affect addresses in the table. So the keys of
// addresses that exist at once are at most
//
//	nodes × (Most + Most ÷ 10)
//
// of B bytes each: about 230 for one limit, and 44 and the name for every further limit and endpoint. It
// takes Most ÷ Rate seconds at least to fill them.
//
// # Sliding logs
//
// A sliding log grows with the requests that it counts, so an address with one could fill the store by itself. Each
// log is counted as a new key beside its address, one for every limit and endpoint, and as the bytes that it may grow
// to: for a limit of n, with keys and names, about
//
//	(15 + 14 × max(2n, n + 64)) × 2 × 5 ÷ 4
//
// because half of its entries may have expired, a server doubles a string that grows, and an allocator rounds up. These
// bytes are reserved when the log is new, and free again when it has expired. The slots of a concurrency limit of n are
// counted in the same way, as 150 × n bytes. All logs of a node's addresses have 230 ×
// Most of them, logs of its prefixes a tenth of that. So at every instant
//
//	bytes ≤ nodes × (Most + Most ÷ 10) × (B for buckets + 230 for sliding logs)
//
// A log without room is counted by its prefix, or in this process, as an address above the budget is; the other limits
// of its address are not. A request that another server denies leaves no entry in a log.
//
// # Above the budget
//
// A new address is counted by its prefix, the /24 of an IPv4 address and the /48 of an IPv6 one (16 bits less than what
// is counted, where that is a /48 or wider): one bucket with the same limit for all of it. Prefixes are new keys too,
// and have a table and a rate of their own, a tenth of the other. Above that, an address is counted in this process, by
// this node's share of the limit, as with fail mode local.
//
// None of this admits more from an address than its limit, on one node. All of a prefix share one limit, so they are
// admitted less. An address that gets a bucket of its own while its prefix is in use spends from both, until what it
// may have spent as part of the prefix has expired. Four cases are an address's limit once more, as after
// an eviction: nodes that count it in different ways, a bucket in this process that is followed by one in the store,
// a node that starts again, and requests in flight that hold slots as part of a prefix, because a request holds one.
//
// What does not live here: the buckets of a prefix and of an address, which are the central store's like all others,
// and this node's share of a limit (package outage).
package addresses
