package spec

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/freeport"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
)

// degradedBy starts a node with a redis block, and returns a function for the metrics of that Redis.
func degradedBy(t *testing.T, block, store string) (n *node, metric func(name string) float64) {
	t.Helper()
	address := freeport.Address(t)
	n = start(t, deck(fmt.Sprintf(`{strategy: redis, redis: {%s}, degraded_header: true, tiers: [{name: a, limits: [
		{name: hour, scope: tenant, limit: 1000, window_size: 3600}]}]}`, block)), watched(address))
	return n, func(name string) float64 {
		_, metrics := read(address, "/metrics")
		value, _ := number(metrics, fmt.Sprintf("rate_limiter_%s{store=%q}", name, store))
		return value
	}
}

func TestAFullRedisIsDegradedUntilItHasMemoryAlthoughItAnswersPing(t *testing.T) {
	t.Parallel()
	server := redistest.Single(t)
	client := server.Client(t)
	set := func(setting, value string) {
		t.Helper()
		require.NoError(t, client.ConfigSet(t.Context(), setting, value).Err())
	}
	scripts := func() (calls int) {
		_, stats, _ := strings.Cut(client.Info(t.Context(), "commandstats").Val(), "cmdstat_evalsha:calls=")
		text, _, _ := strings.Cut(stats, ",")
		calls, _ = strconv.Atoi(text) // 0 without calls
		return calls
	}
	n, metric := degradedBy(t, "socket: "+server.Socket+", "+patience, server.Socket)
	degraded := func() bool { return metric("degraded") == 1 }
	n.want([]int{200}, "/records", "apikey", "alice")
	set("maxmemory", "1")
	await.That(t, "the metrics to report a degraded Redis", func() bool {
		n.want([]int{200}, "/records", "apikey", "alice")
		return degraded()
	})
	if a := n.get("/records", "apikey", "alice"); a.Header.Get("X-RateLimit-Degraded") != "hour=local" {
		t.Errorf("the headers are %v", a.Header)
	}
	before := scripts()
	await.That(t, "probes without traffic", func() bool { return scripts() >= before+3 })
	log := n.log.String()
	if strings.Count(log, "its limits use") != 1 || strings.Contains(log, "answers again") || !degraded() {
		t.Errorf("the Redis that denies every script is reported as back:\n%s", log)
	}
	set("maxmemory", "0")
	await.That(t, "the recovery without traffic", func() bool { return !degraded() })
	if a := n.get("/records", "apikey", "alice"); a.Status != 200 || a.Header.Get("X-RateLimit-Degraded") != "" {
		t.Errorf("%d, %v", a.Status, a.Header)
	}
}
