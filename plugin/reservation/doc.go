// Package reservation keeps what requests have reserved until they are settled. In Kong's access phase a limit that
// settles takes a reservation, because what the request will cost is not clear yet. [Keeper.Keep] remembers it under an
// id, which travels with the request. The log phase reads what the request really used, and [Table.Settle] replaces the
// reservation by that.
//
// # Once or never
//
// A reservation leaves the table before its buckets are changed, so it is settled once at most, however often Kong
// sends the event of a log phase. The id comes from the request's context, which other plugins can write. An id that
// the table does not have settles nothing, and a reservation names its buckets itself: a forged id returns no more than
// that reservation took.
//
// In doubt a request pays: a reservation stays charged if its request cannot be measured, if no log phase comes before
// the limit's timeout, if the process ends, and if the table is full. A request that is measured after the timeout is
// charged what it used beyond its reservation, and gets nothing back.
//
// # Bounds
//
// The table has at most [Options.Most] reservations. Beyond that one is dropped: one that has timed out, and so can only
// be charged more, or else the one that would time out first, which is counted. It is in the memory of one process: a
// log phase that reaches another process, such as that of the time before a reload of Kong, finds no reservation there.
//
// What a request used is measured by package settle, and what a change does to a bucket is in package limit.
package reservation
