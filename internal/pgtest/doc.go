// Package pgtest starts real Postgres servers for a test, and ends them with it. A server has a temporary folder (in
// memory, if enough is free), a unix socket there and a free port of the loopback. It does not sync to disk: its data
// survives a kill of its process, but not the end of the machine.
//
// [Shared] returns one server for all tests of a package, each with a database of its own. The TestMain of the package
// is [Main]. A test that stops or kills a server starts another one ([Start]). Servers start with a copy of the data of
// the first one, because initdb and the migrations take long. The packages of one run of go test share that data.
//
// A test without Postgres fails and is never skipped. If Postgres is missing, this package installs it with apt-get,
// once and if the environment asks for it (package debian). Postgres does not run as root, so for root its programs run
// as the user postgres.
//
// Package migrations defines the tables; this package only applies them.
package pgtest
