// Package pgtest starts real Postgres servers for a test, and ends them with it. A server lives in a temporary folder
// (in memory where there is plenty), on a unix socket there and a free port of the loopback, and syncs nothing to disk:
// it outlives kills of its process (the operating system has its pages), not of the machine. Whatever else runs on the
// machine is not touched.
//
// [Shared] is one server for all tests of a package, each with a database of its own; its package's TestMain is [Main].
// A test that stops or kills a server starts one for itself ([Start]).
//
// A test without Postgres fails, it is never skipped: an unchecked promise is not kept. Where Postgres is
// missing and this process may install it (apt-get), it does, once. Postgres refuses to run as root: started by root,
// its programs run as the user postgres.
//
// What the tables are is package migrations'; this package only applies them.
package pgtest
