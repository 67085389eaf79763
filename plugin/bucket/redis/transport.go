package redis

import "context"

// transport runs scripts where a key's bucket lives.
type transport interface {
	// Groups reports whether buckets of different groups may live on different servers (Cluster). On a single Redis one
	// script takes all bounds.
	Groups() bool
	// Run runs a script with EVALSHA at the server that owns the first of c's keys, which are in one slot, and leaves the
	// reply in c. It takes one round trip unless the script is missing there, which is healed once. It does not retry a
	// script that may have run: such an outcome is errUnknown (wrapped). After an error c must not be used again.
	Run(ctx context.Context, script *script, c *call) error
	// Probe pings every server whose gate admits it.
	Probe(ctx context.Context)
}
