// Package redistest starts real Redis servers for a test, and ends them with it: one server ([Single]), a cluster
// ([Cluster]) or a master watched by Sentinels ([Sentinel]). They have temporary folders, unix sockets and free ports
// of the loopback, and no persistence.
//
// A test without Redis fails and is never skipped. If redis-server is missing, this package installs it with apt-get,
// once and if the environment asks for it (package debian).
//
// Tests inject real faults with [Server.Hang], [Server.Kill], [Server.Restart] and [Clocked.Step]. Package faultproxy
// injects faults of the network.
package redistest
