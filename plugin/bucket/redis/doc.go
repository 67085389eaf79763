// Package redis keeps buckets in Redis, so that a limit holds over all nodes: one round trip decides a request.
//
// A script checks every bound of a request and then spends all of the enforced ones or none ([Store.Take]). It runs
// atomically, by Redis's clock at that moment. So the instants at which a bucket is decided do not step back, unless
// that clock does, in whatever order the requests were sent. Only the decision is made there: the reply has the states
// as they were, and package limit, whose arithmetic the script repeats, computes from them what a client reads. So
// Redis does little, and a difference between the two is noticed.
//
// # Where a bucket lives
//
// A subject (a tenant, a user of it, an address, an endpoint, all) has one string that holds all of its buckets, each
// under a name of six bytes: the hash of its policy and endpoint. So a request reads and writes as many strings as it
// has subjects, however many limits each has. A subject with more than 32 buckets is split into chunks by their
// endpoints: its head then holds how many there are and the buckets without an endpoint, and outlives the chunks by an
// hour at most. So a request reads two strings of it, as strings of one endpoint lie together. Where a node has
// missed a split, the script returns the levels and does nothing else; see [levels]. Everything of one tenant, of one
// address, of one endpoint has the same hash tag; a cluster keeps it together, and one script serves it. The tag has
// the kind of group, and every part is percent-encoded, so one tenant cannot address another tenant's keys:
//
//	subject                    key
//	tenant                     rl:default:{t=acme}
//	user of a tenant           rl:default:{t=acme}:u=u_42
//	credential                 rl:default:{t=acme}:c=9f2c41d0
//	user without a name        rl:default:{t=acme}:i=192.0.2.7
//	ip                         rl:default:{i=2001%3Adb8%3A%3A/64}
//	endpoint                   rl:default:{e=POST%20/login}
//	all                        rl:default:{g}
//	chunk 3 of a tenant        rl:default:{t=acme}:#3
//	entries of a sliding log   rl:default:{t=acme}:log:daily, with :POST%20/records for an endpoint
//	slots of requests          rl:default:{t=acme}:slots:exports, of a concurrency limit
//	live nodes                 rl:default:{n}
//	record of a reservation    rl:default:{r=0123456789abcdef0123456789abcdef}
//	probe of a server          rl:{0}, or whatever number is in one of its slots; expires after 10 ms
//
// "default" is the namespace. lua/frame.lua describes the form of the values, which begin with its version.
//
// # How a call is sent
//
// go-redis opens, authenticates and checks all connections, finds the masters, and sends everything but scripts. Up to
// three scripts at a time to one server have a connection of go-redis's pool each. Beyond that they share one
// connection, a [wire], on which every caller writes without waiting for earlier replies. The replies are read from
// their bytes. README.md has what this costs beside go-redis's own pipelines and another client.
//
// Requests that are written together are merged: one EVALSHA decides up to 16 of them, one after the other, each all or
// none. In a cluster none are, because a script has keys of one slot only. If Redis rejects such a command for a reason
// that may be one request's, before it has written anything, they are sent again, each by a command of its own. If the
// script fails later, the outcome of all of them is unknown.
//
// When Sentinel announces another master, go-redis closes its connections, and the shared one takes no more calls:
// those that are sent get their replies, and the next call opens another. Without the announcement, because that
// Sentinel has just failed, a node uses the old master until Sentinel demotes it, some ten seconds later.
//
// Else a request is sent again only where the server lacks the script. A call that ends early is not sent if it is not
// written yet, and its outcome is unknown if it is. Then its memory is not used again: the reply may still come.
//
// # When Redis forgets
//
// Every key has a TTL, and outlives its buckets. A key that is evicted or deleted is a bucket that was never spent
// from: its tenant is admitted at most its limit's bound once more. A sliding log that loses its entries alone counts
// as empty too. A refund to a bucket that has begun anew is dropped, and a charge counts in it.
//
// # What does not live here
//
// What the numbers mean is in package limit. What happens while Redis is unavailable is in the outage layer: here the
// status of a bound without an answer has the cause, and a [Gate] of that layer holds calls back from a server that
// fails.
package redis
