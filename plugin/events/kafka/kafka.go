// Package kafka sends events to topics of Kafka: acknowledged by all replicas in sync, and by an idempotent producer,
// so that its own retries write nothing twice.
//
// A [Producer] has no queue: its caller keeps a batch until Kafka has acknowledged it, bounds what waits, and counts
// what it drops. Nothing here waits for Kafka at startup.
//
// Programs built with the tag nokafka have no client of Kafka, which a third of the time to compile the plugin goes
// into: there [New] fails. The tag is for the demos; what make build builds has the client.
package kafka

// Unsent is the error of a batch that Kafka has not stored completely.
type Unsent struct {
	retry, rejected []int
	pending         bool
	reason          string
}

// Error implements error. The text is the same while Kafka fails in the same way.
func (u *Unsent) Error() string { return "send events to Kafka: " + u.reason }

// Left returns the indexes of the events that are to be sent again, and of those that Kafka rejects for ever.
func (u *Unsent) Left() (retry, rejected []int) { return u.retry, u.rejected }

// MayArrive reports whether Kafka may store some of the events that are to be sent again, because it has them and has
// not answered.
func (u *Unsent) MayArrive() bool { return u.pending }
