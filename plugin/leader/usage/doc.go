// Package usage keeps usage history in Postgres. Nodes report batches ([usage.Batch]). One leader unpacks them
// into rows by minute, and sums minutes up to hours and hours to days ([Leader]). The migration 00006_usage.sql
// describes the tables.
//
// # Once
//
// A batch is added once. One transaction adds its rows, sets last_seq of its source (a process of a node) and deletes
// the batch. The batches of a source are added in the order of their seq. One that is not above last_seq was added or
// given up before, and adds nothing. Where one is missing, the later ones wait for it, and go on without it after a
// time: that is a gap, which the source counts.
//
// All writes of the leader go through the session that holds its advisory lock. Each transaction also locks the row of
// usage_state first. So a leader that has lost its lock cannot write, and two leaders would work one after the other.
//
// # Sums
//
// usage_state has two marks. All minutes before hours_until are in the hours, and all hours before days_until are in
// the days. Moving a mark and adding the sums is one transaction. A batch that comes late is added to its minutes, and
// also to each sum whose mark has passed it. So minutes, hours and days always have the same total, and no sum is
// recomputed.
//
// A day before days_until is closed and does not change. What comes later for it is added to the day on which it comes,
// in rows that are marked as late. Its minutes and hours have the true time.
//
// # Tiers
//
// tenant_tiers has by which tiers nodes decided the requests of a tenant, and when last. A batch that comes late
// changes nothing that is newer. Package control/api resolves a tenant's tier by them.
//
// # Faults
//
// A batch that cannot be decoded is set aside: it stays in its table with the fault, and the batches after it are
// added. A later leader, which may be of a newer program, tries it once more. A batch from before the oldest minute
// that is kept is dropped and counted. After any other error the leader ends its session, logs the error once, and
// tries again.
package usage
