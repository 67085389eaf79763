// Package named keeps reservations under ids that callers choose. The decision API uses it: a check reserves tokens,
// and a later call settles them by the same id, maybe through another process.
//
// # At most once
//
// Each id has one entry in the records, which all processes share ([reservation.Records]). It changes by
// compare-and-swap only:
//
//	(none) → claimed → reserved → settling → settled
//
// [Ledger.Claim] makes the entry before any bucket is charged. So of several checks with one id one takes, and the
// others wait for its answer. A check that is denied deletes the entry again. [Ledger.Settle] marks the entry as
// settling before it changes a bucket. So a process that dies on the way leaves a claim or a settlement whose outcome
// is unknown, and neither is tried again: in doubt a reservation stays charged.
//
// An entry is kept for twice the reservation's timeout. A settlement in the second half charges what was used beyond
// the reservation, and returns nothing. After that the id is unknown. The process that made a reservation reports it
// when it times out.
//
// Ids of an org's token and ids of operators are in different spaces ([Name]): a token can neither take, read nor probe
// an id of another org.
package named
