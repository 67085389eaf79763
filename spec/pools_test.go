package spec

import (
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
)

// poolTimeout is the read timeout of a Redis that hangs: far above what a request of a busy machine takes.
const poolTimeout = 3 * time.Second

// TestARedisThatHangsOrDiesAffectsNoTenantOfAnotherPool sends requests of two tiers with limits that fail closed, each
// with a Redis of its own.
func TestARedisThatHangsOrDiesAffectsNoTenantOfAnotherPool(t *testing.T) {
	t.Parallel()
	shared, own := redistest.Single(t), redistest.Single(t)
	limit := `{name: daily, scope: tenant, limit: 1000000, window_size: 86400, accuracy: exact}`
	n := start(t, deck(fmt.Sprintf(`{strategy: redis, fail_mode: closed,
		redis: {socket: %s, read_timeout: %d}, redis_pools: [{name: big, socket: %s, %s}],
		tiers: [{name: essentials, limits: [%[5]s]}, {name: enterprise, redis_pool: big, limits: [%[5]s]}]}`,
		shared.Socket, poolTimeout.Milliseconds(), own.Socket, patience, limit)))
	n.want(times(2, 200), "/records", "apikey", "alice")
	n.want(times(2, 200), "/records", "apikey", "beth")
	keys := own.Client(t).Keys(t.Context(), "rl:default:{t=*").Val()
	if len(keys) != 1 || keys[0] != "rl:default:{t=acme}" {
		t.Errorf("the pool of acme's tier has the keys %q", keys)
	}
	for _, fault := range []struct {
		name       string
		begin, end func()
	}{
		{"hangs", func() { shared.Hang(t) }, func() { shared.Resume(t) }},
		{"dies", shared.Kill, func() {}},
	} {
		fault.begin()
		var running sync.WaitGroup
		stop, failed := make(chan struct{}), make(chan int, 1)
		running.Go(func() { // the other tier, at eight requests at a time until its breaker opens, and after
			statuses := make(chan int, 64)
			for range 8 {
				running.Go(func() {
					for {
						a, _ := n.send(http.MethodGet, "/records", "apikey", "beth")
						select {
						case statuses <- a.Status:
						case <-stop:
							return
						}
					}
				})
			}
			count := 0
			for count < 100 {
				if status := <-statuses; status == 503 {
					count++
				}
			}
			failed <- count
			close(stop)
		})
		requests, worst := 0, time.Duration(0)
		for open := true; open; requests++ {
			begun := time.Now()
			a := n.get("/records", "apikey", "alice")
			worst = max(worst, time.Since(begun))
			if a.Status != 200 {
				t.Fatalf("request %d of the other pool, while a Redis %s: %d %s", requests, fault.name, a.Status, a.Body)
			}
			select {
			case <-stop:
				open = false
			default:
			}
		}
		running.Wait()
		if worst >= poolTimeout/2 || requests < 10 {
			t.Errorf("while a Redis %s, the worst of %d requests of the other pool took %v", fault.name, requests, worst)
		}
		t.Logf("while a Redis %s: %d requests of its pool got 503, %d of the other 200 in at most %v", fault.name, <-failed,
			requests, worst)
		fault.end()
	}
}
