// Package abuse scores how tenants send requests, and puts those that look like an attack on a ladder of penalties.
//
// [Config.Score] is a pure function: from the state of a tenant and what happened in one minute it returns the next
// state and a [Verdict], with the reason in words. One process of the fleet calls it for every tenant and minute. It
// has no clock, and the state is all that it remembers.
//
// # Signals
//
// Three signals flag a tenant. Each needs denials: requests within the limits never flag a tenant.
//
//   - DeniedShare: of the requests of the last minutes, most were denied.
//   - Spike: the requests of the last minutes are many times the tenant's own baseline, and half of them were denied.
//   - Breadth: many more different users, addresses or credentials than usual were denied, and a good part of the
//     requests.
//
// A signal must be in each of the last three minutes. So a burst of up to a minute, such as an hourly job, does not
// flag, whether or not it lies across the turn of a minute.
//
// A denial counts if a limit had no room. Denials by a ban, for a missing name, or because the shared store was away
// (fail mode closed, or a node's share of a limit) do not count: the caller leaves them out. Of the denials under a
// penalty, those that the limit without it would have admitted do not count either, so a penalty is no evidence for the
// next one. Denied clients retry after an outage: where outages of the store denied a tenth of a tenant's requests in a
// minute, nothing flags the tenant for the next fifteen minutes.
//
// # Baseline
//
// A baseline is an exponentially weighted mean with its variance, updated by
//
//	d = x − mean;  mean += α·d;  variance = (1 − α)·(variance + α·d²)
//
// as in Tony Finch, "Incremental calculation of weighted mean and variance" (University of Cambridge, 2009), with α of
// a half-life of six hours. The n-th value has α of at least 1/n, which makes the first hours a plain mean.
//
// A baseline does not learn an attack: it learns no minute of a tenant on the ladder, none that is flagged, and none
// with more than a tenth of the requests denied. What it learns counts as three deviations above the mean at most. So a
// tenant that grows slowly raises its baseline up to its limits, and no further. Spike and Breadth do not flag before
// 60 minutes are learned. Minutes without requests are not learned: the baseline is that of a minute in which
// the tenant sends.
//
// # Ladder
//
// The first flag is a warning, without an effect. A tenant that is still flagged five minutes after a step climbs to
// the next one: half of its limits, a tenth, a ban of 5 minutes, a ban of an hour. After a ban it has a tenth again. A
// tenant that was on a penalty within the last day climbs two steps at a time, and its next ban lasts an hour. Fifteen
// minutes without a flag take it one step down.
//
// Package abuse runs abuse detection for the fleet. A [Detector] scores what the leader has unpacked, with package
// abuse, and turns steps of the ladder into overrides. The migration 00003_overrides.sql describes the tables.
//
// # A run
//
// [Detector.Run] is a chore of the leader, in its session. It scores every minute once, a while after the minute has
// ended: one transaction locks the row of abuse_state, scores the minute, writes the states, the moves and their
// events, and moves the mark. So a new leader continues where the last one ended, and two leaders would work one after
// the other. After a pause it scores the last half hour.
//
// Then it compares each tenant's step with its override, and makes, replaces or ends overrides where they differ. A run
// that fails in between is repaired by the next one. Overrides expire within an hour, so without a leader penalties
// end.
//
// Where at least 20 tenants are flagged in a minute, and more than a fifth of those that have sent, no tenant climbs.
//
// # What it never does
//
// It makes no override in shadow mode. It changes no override that it has not made: its database role can only execute
// penalize and lift_penalty. A tenant of an exempt tier, one with an exemption of its own, and one that was forgiven is
// on no step. A tenant in which a user, an endpoint or a credential is exempt is not banned, because a ban goes before
// an exemption. Where an operator ends a penalty, the tenant is forgiven for an hour.
package abuse
