// Package redisstore keeps buckets in Redis, so that a limit holds over all nodes: one round trip decides a request.
//
// A script asks every bound of a request and then spends all of the enforced ones or none ([Store.Take]). It runs
// atomically, by Redis's clock. Only the decision is made there: the reply is the states as they were, and package
// limit, whose arithmetic the script repeats, tells from them what a client reads. So Redis does little, and the two
// cannot tell different stories unnoticed.
//
// # Where a bucket lives
//
// What is bounded by configuration, a tenant's own buckets and its buckets per endpoint, are fields of the tenant's
// hash; all others are strings of their own. Everything of one tenant, of one address, of one endpoint has the same
// hash tag; a cluster keeps it together, and one script serves it. The tag says what it tags, and every part is
// percent-encoded, so no name can reach another's keys:
//
//	scope            key                                                      field
//	tenant           rl:default:{t=acme}                                      daily
//	tenant+endpoint  rl:default:{t=acme}                                      writes:POST%20/records
//	user             rl:default:{t=acme}:burst:u=u_42
//	credential       rl:default:{t=acme}:keys:c=9f2c41d0
//	user+endpoint    rl:default:{t=acme}:heavy:u=u_42:e=GET%20/export
//	user, by ip      rl:default:{t=acme}:burst:i=192.0.2.7
//	ip               rl:default:{i=2001%3Adb8%3A%3A/64}:visitors
//	endpoint         rl:default:{e=POST%20/login}:logins
//	global           rl:default:{g}:everything
//	entries of a sliding log: the key as above (for a tenant's, the field follows), and :log
//	the time until which a hash lives: its field ":"
//
// "default" is the namespace. A field of more than 64 bytes keeps its first 41 and the hash of all, so that Redis goes
// on storing the tenant's hash compactly.
//
// # When Redis forgets
//
// Every key has a TTL, and outlives what its buckets mean. A key that is evicted or deleted is a bucket that was never
// spent from: its owner is admitted at most its limit's bound once more. A sliding log that loses its entries alone
// counts as empty too.
//
// # What does not live here
//
// What the numbers mean is package limit's. What happens while Redis is away is the outage layer's; here it is an
// [Error].
package redisstore
