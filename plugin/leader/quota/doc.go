// Package quota notices that a tenant has used 50, 80 or 100 % of a quota: a limit of a tenant with a window of an hour
// or more. [Watcher] is part of the leader of `ratelimit serve`. docs/usage.md has the rules for operators.
//
// # What is looked at
//
// Rows of usage say which tenants were active, by which policies, and their buckets say what is used. So a notice has
// the numbers that clients read, whatever the algorithm, also after a settlement, a reset or an outage, and of a
// limit that was changed. usage_state.changed_since is the first minute with rows that were not looked at. The
// transaction that unpacks a batch sets it, and the one that writes the notices clears it. So a leader that comes
// later looks at all that the one before did not.
//
// # Once
//
// The primary key of quota_notices has the tenant, the policy, the endpoint, the window and the threshold. A notice is
// written only if there is none of this or a higher threshold in the window. The transaction that writes notices also
// adds their events.
package quota
