// Package reservation keeps what requests have reserved until they are settled. In Kong's access phase a limit that
// settles takes a reservation, because what the request will cost is not clear yet. [Keeper.Keep] remembers it under an
// id, which travels with the request in a token. The log phase reads what the request really used, and [Ledger.Settle]
// replaces the reservation by that.
//
// A request that a concurrency limit has admitted reserves a slot of it. The end of the request releases the slot,
// whatever its status, and nothing is read for that. If no end comes, the slot ends by its deadline in the store.
//
// # In all processes
//
// A log phase may reach another process: after a reload of Kong, or because the first one was killed. So a reservation
// in a store that processes share is recorded there too, as a [Record], which has all that is needed to settle it.
// The record is written after the take, by a call of its own, so that a request does not wait for it. A kill in the
// milliseconds between leaves the reservation charged, which is the safe side.
//
// A reservation in the memory of this process has no record. [Ledger.Save] writes those for the process that takes the
// place of this one, and [Ledger.Load] reads them there.
//
// In another process the token says which store has the record, and what to read of the request before the record is
// there. If that process has not opened the store yet, because it has not seen the config, the end of the request is
// parked until it does.
//
// # Once or never
//
// A process takes a reservation out of its ledger once. Of all processes, one swaps its record for a claim, and it
// alone changes the buckets. Where no record was written, only the process that made the reservation changes them. So a
// reservation is settled once at most, however often and wherever Kong sends the event of a log phase. A claim stays
// for 30 seconds, and is new for each end of a request. So a claim whose answer was lost is made again, and has the
// same answer.
//
//	the record               the process that made it           another process
//	is there, or claimed     settles                            settles
//	  by the same claimant
//	is claimed by another    does nothing: another settles      does nothing
//	was not written          settles                            does nothing
//	is out of reach          parks the end of the request       parks the end of the request
//	is gone, and no call     does nothing: another has settled  looks once more a second later, then does nothing
//	  was lost
//	is gone, and its writing charges more, returns nothing      looks once more a second later, then does nothing
//	  or a claim was lost,
//	  or its time is over
//
// The last line charges twice what was used beyond a reservation only if another process has settled it more than 30
// seconds before.
//
// The token comes from the request's context, which other plugins can write. It has no bucket and no number of tokens:
// a forged one settles nothing, or returns no more than a reservation took.
//
// A slot is released in all of these cases but where it is certain that another process does it: its id names no other
// slot, so a second release does nothing.
//
// In doubt a request pays: a reservation stays charged if its request cannot be measured, if no log phase comes before
// the limit's timeout, and if the ledger is full. A request that is measured after the timeout is charged what it used
// beyond its reservation, and gets nothing back. All processes measure the timeout by the wall clock, from the instant
// in the record; the process that made the reservation also measures it by a monotonic clock.
//
// # By name
//
// The decision API keeps reservations under ids that callers choose: a check reserves tokens, and a later call settles
// them by the same id, maybe through another process. Each id has one entry in the records, which changes by
// compare-and-swap only:
//
//	(none) → claimed → reserved → settling → settled
//
// [Keeper.Claim] makes the entry before any bucket is charged. So of several checks with one id one takes, and the
// others wait for its answer. A check that is denied deletes the entry again. A settlement marks the entry before it
// changes a bucket. So a process that dies on the way leaves a claim or a settlement whose outcome is unknown, and
// neither is tried again: in doubt a reservation stays charged.
//
// An entry is kept for twice the timeout, also if the ledger drops its reservation, which only reports the timeout. A
// settlement in the second half charges what was used beyond the reservation, and returns nothing. After that the id is
// unknown. Ids of an org's token and ids of operators are in different spaces ([Name]): a token can neither take, read
// nor probe an id of another org.
//
// # Bounds
//
// The ledger has at most [Options.Most] reservations. Beyond that the one is dropped, with the record of a request,
// that would be the next to time out, which is counted, or to be forgotten because it has timed out. A record expires
// after twice the timeout. At most 1,024 records are on their way at a time; beyond that a reservation is not recorded,
// and only its own process can settle it. At most 10,000 ends of requests are parked, of 32 MB, for ten minutes each.
//
// What a request used is measured by package settle, and what a change does to a bucket is in package limit.
package reservation
