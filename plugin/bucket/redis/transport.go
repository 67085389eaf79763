package redis

import "context"

// transport runs scripts where a key's bucket lives.
type transport interface {
	// Groups reports whether buckets of different groups may live on different servers (Cluster). On a single Redis one
	// script takes all bounds.
	Groups() bool
	// Run evaluates a script with EVALSHA at the server that owns keys[0] (all keys are in one slot) and returns
	// its reply. Exactly one round trip unless the script is missing there (healed once). It does not retry a script
	// that may have run: such an outcome is errUnknown (wrapped).
	Run(ctx context.Context, script *script, keys []string, args []any) ([]any, error)
	// Probe pings every server whose gate admits it.
	Probe(ctx context.Context)
}
