// Package replay decides the requests of recorded traffic again, with the decision code of the plugin.
//
// [Open] reads requests from a log: the JSON of Kong's file-log and http-log, lines of nginx, or CSV. [Stream] merges
// logs and sorts their requests by the time at which they started. [Gateway] decides each request as the plugin in Kong
// would: through an admit.Decider for the config of the request's route, with buckets in memory, on a clock that shows
// the time of the request. [Run] adds the decisions up to a [Report].
//
// The package decides nothing itself. Package suggest derives limits from the same requests, and package
// replay/replayhtml renders a report for people.
package replay
