// Package session keeps who is signed in to the portal in sealed cookies, so that several processes with one key serve
// the same sessions and none keeps a table of them.
//
// A [Jar] seals values with AES-GCM: a browser can neither read nor change them, and a value of one cookie is not valid
// as another. Over TLS its cookies have the prefix __Host- and Secure. Over plain HTTP they are set only where the
// connection and the host name are of this machine, without either.
//
// [Sessions] adds what a session is: an id that is new at every sign-in, an idle timeout, an absolute one, and
// sign-out, which a process remembers for as long as a copy of the cookie could be used.
//
// What the caller may do is not decided here: the session of a token carries its secret, and package portal checks it
// again with every request.
package session
