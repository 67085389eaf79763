package redis

import "context"

// transport runs scripts where a key's bucket lives.
type transport interface {
	// Groups tells whether buckets of different groups may live on different servers (Cluster). On a single Redis one
	// script takes all bounds.
	Groups() bool
	// Run evaluates a script with EVALSHA at the server that owns keys[0] (all keys are in one slot) and returns
	// its reply. Exactly one round trip unless the script is missing there (healed once). It does not retry a script
	// that may have run: such an outcome is errUnknown (wrapped).
	Run(ctx context.Context, script *script, keys []string, args []any) ([]any, error)
	// Probe asks every server whose gate lets it whether it lives.
	Probe(ctx context.Context)
}
