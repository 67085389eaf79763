// Package usage counts what every tenant uses, and reports it. A [Counter] observes decisions and settlements. Every
// few seconds a [Reporter] takes what was counted, as a [Batch], and hands it to a [Sink], which stores it in Postgres.
// There one process adds the batches up by minute, hour and day.
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
//   - Where the central store does not answer, fail mode open admits: the policy counts the request as admitted, with
//     its cost, which the store is charged later. Fail mode closed denies: the policy counts the request as denied. The
//     least left ignores a node's share of a limit, as of fail mode local.
//   - A settlement changes the cost of the policy, which so may be negative in one batch. It counts when it comes.
//   - Requests without a tenant, whether counted by address or not at all, have the tenant "". So no row has an address
//     or a user. Requests for which on_internal_error or on_config_fault decided are not counted: no limit was checked.
//
// A policy is identified by its [policy.Ref]: two tiers may have policies of one name. A [Tier] says by which tier the
// requests of a tenant were decided, and where it was found, unless the caller stated it.
//
// # Promises
//
// Counting never waits for a sink, a file or another connection: requests of one connection count in one of several
// stripes, each with a lock that is held for little more than an access of a map. Memory is bounded: rows by
// [CounterOptions], batches by [ReporterOptions]. What does not fit is dropped and counted.
//
// A batch is delivered once or more, and identified by node, epoch and seq, so that the receiver can count it once. The
// epoch is random for each reporter, seq counts its batches from 1 without a gap. A dropped batch leaves a gap.
//
// With a folder, a batch is written to a file before it is sent, and removed after. So a process that ends loses
// nothing, and a process that is killed loses what it counted since its last batch. The next process that uses the
// folder sends what an ended one has left there, under the ended one's node and epoch.
//
// The package does not import Postgres; package policysync has the sink.
package usage
