// Package lease decorates a store that all nodes share, so that hot buckets cost it almost nothing and floods of denied
// requests nothing at all.
//
// A node that sees a bucket often takes tokens from it ahead of need, about as many as it spends in 100 ms, and spends
// them without calling the store. A [Store] does so in the background: it renews leases before they run dry, takes many
// in one call, and returns what is not needed, so no request ever waits for a lease. A request that finds no lease
// calls the store itself. Nothing is leased for requests that cost more than a lease can hold. The [holdings] account
// for every token.
//
// # No node admits more than the limit
//
// Tokens are taken from the shared bucket before they are spent, and at most a share of every limit (2 % by default) is
// out on lease over all live nodes together. A fixed window's leases end with the window, so it admits what it has room
// for. A token bucket refills while its tokens are out, and they could be spent on top of that. Therefore every request
// and renewal calls the store for such a policy with a burst that is less by what refills while a lease lasts (0.75 s),
// or by the share if that is less. Any interval then sees at most burst + rate × t: the proof is at [refillPerLease].
// So the cost of a lease is under-admission, of at most the share; a limit of a million a day loses 9 tokens of its
// burst. A request that costs more than the reduced burst is never admitted. A node that dies loses what it has out: a
// token bucket has refilled that after share × burst ÷ rate, a fixed window with its next.
//
// # Scarce buckets
//
// What comes back to a bucket that denies is shared out: every 20 ms each node takes its share of it, and what the
// others left in the round before. A call that might find less than it requests asks in halves, so that it gets what
// there is. All leases of a request that run low are renewed in one call.
//
// # Denials
//
// After a denial of a cost until some instant, the store is not called for that cost or more until then, or for a
// second at most. That is exact unless tokens return to the bucket: what another node releases, or an operator's reset,
// may be denied for a second more. There is one exception: a token bucket that refills a token every 40 ms or faster,
// and that this node spends from 20 times a second or more. It denies for two rounds, 40 ms, although it could admit
// earlier, and then whatever a node's share has no room for, until a share leaves a whole lease beside what the others
// can take in a round. What comes back stays in the bucket meanwhile, for the next shares. So a tenant far beyond its
// limit gets all of it for few calls. The delay is below the resolution of Retry-After.
//
// When a denial by a token bucket that is not leased ends, one request calls the store, if it needs that bucket alone
// and at the denied cost. While another token cannot have come back, other requests are denied for 5 ms more. If the
// request took the last token, they are denied until the next comes, so a flood costs one call for each token.
//
// A request with a bound that is known to deny is denied without taking any of its bounds, so the answer names only the
// bounds that deny, and bounds in shadow are not counted in that time. A bound in shadow that would deny is answered
// from memory too, but denies nothing. All of this is dropped as soon as the limit itself changes; a policy that is
// compiled again with the same limit keeps its leases and denials.
//
// # Order of the decorators
//
// This decorator stands before the outage layer: a [Store] calls an outage store, and renewals call the central store
// itself. So a lease is spent while the central store is unavailable, without a place in the bulkhead, and only a
// request that finds no lease is decided by fail modes. A flood of denied requests takes no place from others, and what
// a node admits on its own while degraded is never mistaken for a lease. If a request is leased in part, the outage
// layer decides the other part; if it denies, what was drawn returns to the lease.
//
// Elsewhere: calling the central store (package redis), decisions without an answer (package outage), how many nodes
// live, and which policies are exact (package bucket).
package lease
