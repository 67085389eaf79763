package spec

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/kong/gateway"
)

// store is where the buckets of a spec are: the first part of its plugin configs.
type store string

// start starts a node as the function start does, with its buckets in the store.
func (s store) start(t testing.TB, deck string, change ...func(*gateway.Options)) *node {
	t.Helper()
	const entry = "tenant-rate-limiting, config: {"
	return start(t, strings.ReplaceAll(deck, entry, entry+string(s)), change...)
}

// inEachStore runs a spec with the buckets in memory, and in Redis.
func inEachStore(t *testing.T, spec func(t *testing.T, in store)) {
	t.Parallel()
	t.Run("memory", func(t *testing.T) {
		t.Parallel()
		spec(t, "")
	})
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		server := redistest.Single(t)
		spec(t, store(fmt.Sprintf("strategy: redis, redis: {socket: %s, %s}, ", server.Socket, patience)))
		if size, err := server.Client(t).DBSize(t.Context()).Result(); err != nil || size == 0 {
			t.Errorf("%d keys in Redis (%v): the promise was not kept there", size, err)
		}
	})
}
