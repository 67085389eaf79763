//go:build doors

package doors_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/prometheus/procfs"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/freeport"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
)

// limits is the config of both. No call reaches a limit: both answer each call by asking for two counters.
const limits = `domain: edge
descriptors:
- key: tenant
  rate_limit: {unit: day, requests_per_unit: 2000000000}
  descriptors:
  - {key: user, rate_limit: {unit: day, requests_per_unit: 1000000000}}
`

const (
	tenants     = 20
	users       = 5 // of each tenant
	connections = 4
	warmUp      = 15 * time.Second // a node leases when it has been counted for some seconds
)

// contender is a service with a Redis of its own.
type contender struct {
	name    string
	service *exec.Cmd
	redis   *redistest.Server
	clients []rls.RateLimitServiceClient
}

func TestDoors(t *testing.T) {
	duration, warm := 10*time.Second, warmUp
	if testing.Short() {
		duration, warm = 200*time.Millisecond, 0
	}
	all := []*contender{theirs(t), ours(t, "exact"), ours(t, "leased")}
	for _, c := range all {
		c.load(t, 16, warm)
	}
	fmt.Println("| callers | service | decisions/s | CPU of the service | CPU of Redis | p50 | p99 |")
	fmt.Println("|---|---|---|---|---|---|---|")
	for _, callers := range []int{1, 16, 64} {
		for _, c := range all {
			service, redis := c.serviceCPU(t), c.redisCPU(t)
			took := c.load(t, callers, duration)
			n := len(took)
			require.NotZero(t, n, "%s has answered nothing", c.name)
			each := func(before, after time.Duration) time.Duration { return (after - before) / time.Duration(n) }
			slices.Sort(took)
			fmt.Printf("| %d | %s | %.0f | %v | %v | %v | %v |\n", callers, c.name, float64(n)/duration.Seconds(),
				each(service, c.serviceCPU(t)).Round(100*time.Nanosecond),
				each(redis, c.redisCPU(t)).Round(100*time.Nanosecond),
				took[n/2].Round(time.Microsecond), took[n*99/100].Round(time.Microsecond))
		}
	}
}

// load calls for a while, each caller one call after the other, and returns how long each call took.
func (c *contender) load(t *testing.T, callers int, duration time.Duration) (took []time.Duration) {
	ctx, cancel := context.WithTimeout(t.Context(), duration+time.Minute)
	defer cancel()
	var lock sync.Mutex
	var group sync.WaitGroup
	end := time.Now().Add(duration)
	for i := range callers {
		group.Go(func() {
			var own []time.Duration
			for began := time.Now(); began.Before(end); {
				answer, err := c.clients[i%connections].ShouldRateLimit(ctx, call())
				if err != nil || answer.GetOverallCode() != rls.RateLimitResponse_OK ||
					answer.GetStatuses()[1].GetCurrentLimit().GetRequestsPerUnit() != 1_000_000_000 {
					t.Errorf("%s: %v, %v", c.name, answer, err)
					return
				}
				now := time.Now()
				own, began = append(own, now.Sub(began)), now
			}
			lock.Lock()
			defer lock.Unlock()
			took = append(took, own...)
		})
	}
	group.Wait()
	return took
}

// call returns a call of a tenant and a user by chance, with a descriptor for each limit.
func call() *rls.RateLimitRequest {
	tenant := &common.RateLimitDescriptor_Entry{Key: "tenant", Value: fmt.Sprintf("t_%d", rand.IntN(tenants))}
	user := &common.RateLimitDescriptor_Entry{Key: "user", Value: fmt.Sprintf("u_%d", rand.IntN(users))}
	return &rls.RateLimitRequest{Domain: "edge", Descriptors: []*common.RateLimitDescriptor{
		{Entries: []*common.RateLimitDescriptor_Entry{tenant}},
		{Entries: []*common.RateLimitDescriptor_Entry{tenant, user}},
	}}
}

// theirs starts envoyproxy/ratelimit, with its defaults but for places, and without statistics.
func theirs(t *testing.T) *contender {
	c := &contender{name: "envoyproxy/ratelimit", redis: redistest.Single(t)}
	root, address := t.TempDir(), freeport.Address(t)
	write(t, filepath.Join(root, "ratelimit", "config", "limits.yaml"), limits)
	c.service = exec.Command(os.Getenv("ENVOY_RATELIMIT"))
	c.service.Env = append(os.Environ(), "DISABLE_STATS=true", "LOG_LEVEL=error", "RUNTIME_ROOT="+root,
		"RUNTIME_SUBDIRECTORY=ratelimit", "RUNTIME_WATCH_ROOT=false", "REDIS_SOCKET_TYPE=tcp",
		"REDIS_URL="+c.redis.Address())
	places := map[string]string{"": freeport.Address(t), "DEBUG_": freeport.Address(t), "GRPC_": address}
	for setting, of := range places {
		host, port, err := net.SplitHostPort(of)
		require.NoError(t, err)
		c.service.Env = append(c.service.Env, setting+"HOST="+host, setting+"PORT="+port)
	}
	c.start(t, address)
	return c
}

// ours starts ratelimit serve with the same limits, as ratelimit import converts them.
func ours(t *testing.T, accuracy string) *contender {
	c := &contender{name: "this plugin, " + accuracy, redis: redistest.Single(t)}
	folder, address := t.TempDir(), freeport.Address(t)
	config, mapping := filepath.Join(folder, "kong.yml"), filepath.Join(folder, "doors.yml")
	write(t, filepath.Join(folder, "limits.yaml"), limits)
	convert := exec.Command(os.Getenv("RATELIMIT"), "import", filepath.Join(folder, "limits.yaml"),
		"--envoy-config", mapping, "--redis", c.redis.Address(), "-o", config)
	out, err := convert.CombinedOutput()
	require.NoError(t, err, "%s", out)
	text, err := os.ReadFile(config)
	require.NoError(t, err)
	const strategy = "strategy: redis\n"
	write(t, config, strings.Replace(string(text), strategy, strategy+"      accuracy: "+accuracy+"\n", 1))
	c.service = exec.Command(os.Getenv("RATELIMIT"), "serve", "--config", config, "--listen", freeport.Address(t),
		"--database", "off", "--envoy-listen", address, "--envoy-config", mapping)
	c.start(t, address)
	return c
}

// start runs the service until the end of the test, and connects to it.
func (c *contender) start(t *testing.T, address string) {
	var out bytes.Buffer
	c.service.Stdout, c.service.Stderr = &out, &out
	require.NoError(t, c.service.Start())
	t.Cleanup(func() {
		_ = c.service.Process.Signal(syscall.SIGTERM)
		_ = c.service.Wait()
		if t.Failed() {
			t.Logf("%s:\n%s", c.name, out.Bytes()[:min(out.Len(), 4000)])
		}
	})
	for range connections {
		conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		c.clients = append(c.clients, rls.NewRateLimitServiceClient(conn))
	}
	await.NoError(t, c.name, func() error {
		_, err := c.clients[0].ShouldRateLimit(t.Context(), call())
		return err
	})
}

// serviceCPU returns the time that the service has computed.
func (c *contender) serviceCPU(t *testing.T) time.Duration {
	process, err := procfs.NewProc(c.service.Process.Pid)
	require.NoError(t, err)
	stat, err := process.Stat()
	require.NoError(t, err)
	return time.Duration(stat.CPUTime() * float64(time.Second))
}

// redisCPU returns the time that Redis has computed.
func (c *contender) redisCPU(t *testing.T) time.Duration {
	info, err := c.redis.Client(t).InfoMap(t.Context(), "cpu").Result()
	require.NoError(t, err)
	user, err := time.ParseDuration(info["CPU"]["used_cpu_user"] + "s")
	require.NoError(t, err)
	system, err := time.ParseDuration(info["CPU"]["used_cpu_sys"] + "s")
	require.NoError(t, err)
	return user + system
}

func write(t *testing.T, file, text string) {
	require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o700))
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
}
