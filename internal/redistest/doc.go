// Package redistest starts real Redis servers for a test, and ends them with it: one server ([Single]), a cluster
// ([Cluster]) or a master watched by Sentinels ([Sentinel]). They live in temporary folders, on unix sockets and free
// ports of the loopback, and keep nothing; whatever else runs on the machine is not touched.
//
// A test without Redis fails, it is never skipped: an unchecked promise is not kept. Where redis-server is
// missing and this process may install it (apt-get), it does, once.
//
// What a server does is checked by the test that starts it. Faults are real ones: [Server.Hang], [Server.Kill] and
// [Server.Restart], [Clocked.Step]. Those of the network between a client and a server are in internal/faultproxy.
package redistest
