// Package sender sends events to webhooks ([Sender]). It reads them from the outbox, and denials from a table of
// their own, makes deliveries for each webhook that wants them, and posts these. Its state is in Postgres (migration
// 00007_events.sql), so after a crash the next leader goes on. Package webhook defines signatures, delays and which
// addresses may be called.
//
// # At least once
//
// Making deliveries, moving the cursor of the outbox and deleting the denials is one transaction. A delivery ends when
// the answer to it is recorded. If the process dies between the answer and its record, the delivery is sent once more,
// with the same id and body.
//
// All writes go through the session that holds an advisory lock, so one process sends. When it loses the session it
// ends all requests before it tries to lead again.
//
// # Receivers that fail
//
// A webhook has one request at a time. After a failed try, the webhook waits and so does the delivery: a receiver that
// is down costs a request from time to time, and a delivery that a receiver denies does not block those after it.
// Webhooks whose last try failed share half of the requests that run at a time, so they do not delay the others. The
// queue of a webhook is bounded; what does not fit is dropped and counted.
package sender
