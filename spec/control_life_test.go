package spec

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/freeport"
)

// fate is the outcome of one request.
type fate int

const (
	served      fate = iota
	released         // served with Connection: close
	unreachable      // no process listened
)

// request sends a request and returns its fate.
func (a *api) request(by *http.Client) (fate, error) {
	request, err := http.NewRequest(http.MethodGet, a.url+"/v1/ratelimit/policies", http.NoBody)
	if err != nil {
		return 0, err
	}
	request.Header.Set("Authorization", "Bearer "+a.secret)
	response, err := by.Do(request)
	if errors.Is(err, syscall.ECONNREFUSED) {
		return unreachable, nil
	}
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	if body, err := io.ReadAll(response.Body); err != nil || response.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("%d %s %w", response.StatusCode, body, err)
	}
	if response.Close {
		return released, nil
	}
	return served, nil
}

func TestSIGTERMUnderLoadDropsNoRequest(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	a := p.serve("--drain-time", "15s", "--log-level", "warn") // in which each client sends a request
	a.want(http.StatusCreated, nil, http.MethodPost, "/v1/ratelimit/policies", policyOf(1000))
	a.want(http.StatusOK, nil, http.MethodPost, check, checkAcme)
	counted := func() int64 { return p.redis.Client(t).ZCard(context.Background(), "rl:default:{n}").Val() }
	await.That(t, "the process counts as a node in Redis", func() bool { return counted() == 1 })
	var answered, closed atomic.Int64
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			by := &http.Client{Transport: &http.Transport{}, Timeout: longest}
			for {
				what, err := a.request(by)
				if err != nil {
					t.Errorf("a request was dropped: %v", err)
					return
				}
				if what == unreachable {
					t.Error("no process listened before all connections were closed")
					return
				}
				answered.Add(1)
				if what == released {
					closed.Add(1)
					return
				}
			}
		})
	}
	// One request is in flight meanwhile: a write that waits for a node that never enforces it.
	p.write(`INSERT INTO rate_limiter.nodes (node, version, enforced_at, reported_at, source) VALUES ('asleep', 0,
		clock_timestamp(), clock_timestamp() + interval '1 h', 'config')`)
	waiting := make(chan error, 1)
	go func() {
		got, err := a.send(http.MethodPut, "/v1/ratelimit/policies?wait=6s", policyOf(1001), "If-Match", "*")
		if err == nil && (got.Status != http.StatusOK || !strings.Contains(got.Body, `"asleep"`)) {
			err = fmt.Errorf("%d %s", got.Status, got.Body)
		}
		waiting <- err
	}()
	await.That(t, "load, and the write", func() bool { return answered.Load() > 200 && p.versionOf() >= 2 })
	if err := a.terminate(); err != nil {
		t.Errorf("after SIGTERM: %v, want exit code 0", err)
	}
	group.Wait()
	if err := <-waiting; err != nil {
		t.Errorf("the write that waits: %v", err)
	}
	t.Logf("%d requests were answered, %d connections closed", answered.Load(), closed.Load())
	if closed.Load() != 8 {
		t.Errorf("%d of 8 connections were closed by the server", closed.Load())
	}
	if counted() != 0 {
		t.Error("it is still counted in Redis")
	}
}

// versionOf returns the version of the rows in the database.
func (p *plane) versionOf() (version int) {
	p.t.Helper()
	require.NoError(p.t, p.rows.QueryRow(p.t.Context(), `SELECT version FROM rate_limiter.version`).Scan(&version))
	return version
}

func TestTheAPIListensBeyondLoopbackOnlyWithTLSAndATokenOrAnExplicitFlag(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	fail := func(args ...string) string {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), longest)
		defer cancel()
		built := p.command(append([]string{"serve", "--metrics-listen", "off"}, args...)...)
		cmd := exec.CommandContext(ctx, built.Path, built.Args[1:]...)
		cmd.Env = built.Env
		out, err := cmd.CombinedOutput()
		if failed := new(exec.ExitError); !errors.As(err, &failed) || !failed.Exited() {
			t.Errorf("%q: %v, want a failure\n%s", args, err, out)
		}
		return string(out)
	}
	_, port, err := net.SplitHostPort(freeport.Address(t))
	require.NoError(t, err)
	public := "0.0.0.0:" + port
	text := fail("--listen", public)
	if !strings.Contains(text, "--tls-cert") || !strings.Contains(text, "--insecure-http") {
		t.Errorf("without TLS: %s", text)
	}
	p.operate("token", "revoke", "ann", "--reason", "the last token")
	if text := fail("--listen", public, "--insecure-http"); !strings.Contains(text, "ratelimit token create") {
		t.Errorf("without tokens: %s", text)
	}
	if text := fail("--database", p.postgres.Empty(t)); !strings.Contains(text, "ratelimit migrate up") {
		t.Errorf("without tables: %s", text)
	}
	p.admin = p.token("bob", "admin")
	a := p.launch("--listen", public, "--insecure-http")
	a.url = "http://127.0.0.1:" + port
	await.That(t, "with a token it serves", func() bool { return a.status("/v1/ratelimit/policies") == http.StatusOK })
}

func TestTheAPIStartsWithoutPostgresAndRedisAndRecovers(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	p.postgres.Stop(t)
	p.redis.Kill()
	a := p.launch()
	await.That(t, "it serves and is not ready", func() bool {
		return a.status("/readyz") == http.StatusServiceUnavailable
	})
	a.want(http.StatusOK, nil, http.MethodGet, "/healthz", "")
	a.want(http.StatusServiceUnavailable, nil, http.MethodGet, "/v1/ratelimit/policies", "")
	p.postgres.Start(t)
	p.redis.Restart(t)
	await.That(t, "it is ready", func() bool { return a.status("/readyz") == http.StatusOK })
	a.want(http.StatusCreated, nil, http.MethodPost, "/v1/ratelimit/policies", policyOf(1000))
	await.That(t, "it spends in Redis", func() bool {
		a.want(http.StatusOK, nil, http.MethodPost, check, checkAcme)
		return p.redis.Client(t).DBSize(t.Context()).Val() > 0 && a.status("/v1/orgs/acme/ratelimit/usage") == http.StatusOK
	})
}
