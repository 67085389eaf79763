// Package abusestore runs abuse detection for the fleet. A [Detector] scores what the leader has unpacked, with package
// abuse, and turns steps of the ladder into overrides. The migration 00017_abuse.sql describes the tables.
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
package abusestore
