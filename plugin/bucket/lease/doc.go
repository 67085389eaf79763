// Package lease decorates a store that all nodes share, so that hot buckets cost it almost nothing and refused floods
// nothing at all.
//
// A node that sees a bucket often takes tokens from it ahead of need, about as many as it spends in 100 ms, and spends
// them without asking. A [Store] does so in the background: it renews leases before they run dry, takes many in one call,
// and gives back what nobody needs, so no request ever waits for a lease. What a request finds no lease for it asks
// for itself, as if there were none, and nothing is leased for requests that cost more than a lease can hold. A [ledger]
// knows what became of each token.
//
// # Nobody gets more than the limit
//
// Tokens are taken from the shared bucket before they are spent, and of every limit at most a share (2 %, unless set
// otherwise) is out on lease over all live nodes together. A fixed window's leases end with the window, so it admits what
// it has room for. A token bucket's could be kept while the bucket refills and then be spent on top of it; therefore a
// policy that may be leased is asked, by every request and renewal, with a burst that is less by what comes back while a
// lease lasts (0.75 s), or by the share where that is less, and what any interval sees stays within burst + rate × t: the
// proof is at [refilled]. So what a lease can cost is under-admission, of at most the share; a million a day loses 9
// tokens of its burst. A request that costs more than the reduced burst is never admitted. A node that dies loses what it
// has out: a token bucket has refilled that, which is at most the share, after share × burst ÷ rate, a fixed window with
// its next.
//
// # Scarce buckets
//
// What comes back to a bucket that refuses is shared out: every 20 ms each node asks for its part of it, and for what
// the others have left in the round before. A call that might find less than it asks for asks in halves, so that it
// brings what there is. All leases of a request that run low are renewed in one call.
//
// # Refusals
//
// A bucket that has refused a cost until some instant is not asked for that cost or more until then, or for a second at
// most. That is exact while nothing is given back to it: what another node returns, or an operator empties, may be
// refused for a second more. There is one exception. A token bucket to which something comes back every 40 ms or more
// often, and that this node spends from 20 times a second or more, refuses for two rounds, 40 ms, though it could admit
// earlier, and goes on to refuse what a node's part has no room for, until a part leaves a whole lease beside what the
// others can take in a round. What comes back stays in the bucket meanwhile, for the next parts. So a tenant far beyond
// its limit gets all of it for few calls, and a client that is told to wait for whole seconds notices nothing. When a
// refusal by a token bucket that is not leased ends, one request asks, if it asks of that bucket alone and at the cost
// that was refused, and while another token cannot have come back, others are refused for 5 ms more. If it took the
// last one, they are until the next comes, so a flood asks once for each.
//
// A request with a bound that is known to refuse is refused without asking for any of its bounds, so the answer names
// those alone that refuse, and bounds in shadow are not counted in that time. A bound in shadow that would refuse is
// answered from memory too, but denies nothing. All of this is forgotten as soon as the limit itself is another; a policy
// that is compiled again with the same limit keeps its leases and refusals.
//
// # Where it stands
//
// The decorator stands before the outage layer, not behind it: a [View] asks an outage view, and renewals ask the shared
// store itself. So a lease is spent while the shared store is away, without a place in the bulkhead, and only a request
// that finds no lease is decided by fail modes; a refused flood takes no place from others either; and what a node admits
// on its own while degraded can never be mistaken for a lease. Of a request that is leased in part, the outage layer
// decides the rest; if it denies, what was drawn goes back into the lease.
//
// What does not live here: how the shared store is talked to (package redis), what happens without an answer
// (package outage), how many nodes live, and which policies are exact (package engine knows both).
package lease
