package spec

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
)

// reportedFleet is what the REST API and the CLI report of nodes.
type reportedFleet struct {
	Nodes []struct {
		Node   string `json:"node"`
		Leases int    `json:"leases"`
		Redis  []struct {
			Name      string    `json:"name"`
			AwaySince time.Time `json:"away_since"`
		} `json:"redis"`
		ReportedAt time.Time `json:"reported_at"`
	} `json:"nodes"`
}

func TestTheFleetShowsLeasesAndSinceWhenARedisDoesNotAnswer(t *testing.T) {
	t.Parallel()
	p := planeOf(t, `tiers: [{name: enterprise,
		limits: [{name: year, scope: tenant, limit: 1000000, window_size: 31536000, algorithm: fixed_window}]}]`)
	n, a := p.node("edge-1", p.dsn), p.serve()
	name := fmt.Sprintf("127.0.0.1:%d", p.redis.Port)
	node := func() (leases int, awaySince time.Time) {
		var f reportedFleet
		a.want(200, &f, "GET", "/v1/ratelimit/fleet", "")
		for _, node := range f.Nodes { // a node uses its Redis from the first request on
			if strings.HasPrefix(node.Node, "edge-1/") && len(node.Redis) == 1 && node.Redis[0].Name == name {
				return node.Leases, node.Redis[0].AwaySince
			}
		}
		return 0, time.Time{}
	}
	ctx, cancel := context.WithCancel(t.Context())
	var drivers sync.WaitGroup
	defer drivers.Wait()
	defer cancel()
	for range 4 { // only buckets in frequent use are leased, also while the node reports
		drivers.Go(func() {
			for ctx.Err() == nil {
				n.want([]int{200}, "/records", "apikey", "alice")
			}
		})
	}
	await.That(t, "the node to report a lease", func() bool {
		leases, _ := node()
		return leases > 0
	})
	cancel()
	drivers.Wait()
	if _, since := node(); !since.IsZero() {
		t.Errorf("a Redis that answers is away since %v", since)
	}
	before := time.Now()
	p.redis.Kill()
	var since time.Time
	await.That(t, "the fleet to report that the Redis does not answer", func() bool {
		_, since = node()
		return !since.IsZero()
	})
	if since.Before(before.Add(-time.Second)) || since.After(time.Now().Add(time.Second)) {
		t.Errorf("it is away since %v, want after %v", since, before)
	}
	want := "is degraded: Redis " + name + " does not answer since 2"
	if shown := p.operate("fleet"); !strings.Contains(shown, want) {
		t.Errorf("ratelimit fleet shows no %q:\n%s", want, shown)
	}
	p.redis.Restart(t)
	await.That(t, "the fleet to report that the Redis answers", func() bool {
		_, since = node()
		return since.IsZero()
	})
	await.That(t, "every node to report that", func() bool { return !strings.Contains(p.operate("fleet"), "is degraded") })
}
