// Package phase is the plugin in Kong: it makes deciders of plugin configs, reads the facts of each request from Kong
// with the fewest questions, and answers with what package admit decided.
//
// Package wire speaks the protocol. All questions of a request that are needed at once leave in one write, and so
// do the headers, the end of the event and the return of the call. A config with faults is replaced by the last good
// one of the same plugin, or answered as its on_config_fault says. An event that fails or panics is answered as
// on_internal_error says. The path of a request is conn.handleEvent (package wire) → instance.access →
// admit.Decider.Admit → session.respond.
package phase
