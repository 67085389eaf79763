// Package usage is about what every tenant uses. A [Batch] holds what one process counted within a few seconds, in the
// form in which Postgres keeps it until it is added up by minute, hour and day.
//
// # What is counted
//
// A [Row] belongs to a tenant, an endpoint and a policy. The row without a policy counts the requests themselves: each
// decision is admitted or denied there, and may be soft or shadow-denied besides. The row of a policy counts what the
// policy did: the requests that were admitted while it applied, those that it denied itself, those that it would have
// denied outside shadow or log mode, the tokens that it charged, and the least that was left of its limit.
//
//   - A request that another policy denies counts in the row without a policy and in that policy's row only.
//   - Bans, the meta limit, a missing name and a repeated header deny without a policy: they count in the row without a
//     policy only.
//   - An exempt request and a preflight are admitted, without a policy unless one still applied.
//   - Where the shared store does not answer, fail mode open admits: the policy counts the request as admitted, with
//     its cost, which the store is charged later. Fail mode closed denies: the policy counts the request as denied. The
//     least left ignores a node's share of a limit, as of fail mode local.
//   - A settlement changes the cost of the policy, which so may be negative in one batch. It counts when it comes.
//   - Requests without a tenant, whether counted by address or not at all, have the tenant "". So no row has an address
//     or a user. Requests for which on_internal_error or on_config_fault decided are not counted: no limit was checked.
//
// # Once
//
// A batch may be delivered more than once. It is identified by node, epoch and seq, so that the receiver can count it
// once. The epoch is random for each process, and seq counts its batches from 1 without a gap.
package usage
