package spec

import (
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/freeport"
)

// door asks one door about a request of acme, and reports whether it admits it.
type door func() (admitted bool, err error)

// byHTTP is a door that answers 200 or 429.
func byHTTP(send func() (answer, error)) door {
	return func() (bool, error) {
		a, err := send()
		if err == nil && a.Status != http.StatusOK && a.Status != http.StatusTooManyRequests {
			err = fmt.Errorf("%d: %s", a.Status, a.Body)
		}
		return a.Status == http.StatusOK, err
	}
}

// byEnvoy is the door for Envoy, asked about one descriptor.
func byEnvoy(t *testing.T, conn *grpc.ClientConn, pairs ...string) door {
	client, call := rls.NewRateLimitServiceClient(conn), &rls.RateLimitRequest{Domain: "edge"}
	call.Descriptors = append(call.Descriptors, descriptor(pairs...))
	return func() (bool, error) {
		a, err := client.ShouldRateLimit(t.Context(), call)
		return a.GetOverallCode() == rls.RateLimitResponse_OK, err
	}
}

// race asks all doors at once, each by some callers, which ask a number of times, and returns how many each admitted.
func race(t *testing.T, doors map[string]door, callers, times int) map[string]int64 {
	t.Helper()
	counts := map[string]*atomic.Int64{}
	var group sync.WaitGroup
	for name, ask := range doors {
		count := new(atomic.Int64)
		counts[name] = count
		for range callers {
			group.Go(func() {
				for range times {
					admitted, err := ask()
					if err != nil {
						t.Errorf("%s: %v", name, err)
						return
					}
					if admitted {
						count.Add(1)
					}
				}
			})
		}
	}
	group.Wait()
	admitted := map[string]int64{}
	for name, count := range counts {
		admitted[name] = count.Load()
	}
	return admitted
}

// sum returns how many requests doors have admitted together, and fails the test if one of them has admitted none.
func sum(t *testing.T, admitted map[string]int64) (all int64) {
	t.Helper()
	t.Logf("admitted %v", admitted)
	for name, n := range admitted {
		if all += n; n == 0 {
			t.Errorf("%s has admitted none", name)
		}
	}
	return all
}

// goProgram builds and starts the program of the docs, with the plane's config and database.
func (p *plane) goProgram() *api {
	p.t.Helper()
	dir, address := p.t.TempDir(), freeport.Address(p.t)
	source := strings.ReplaceAll(recipe(p.t, "go", "ListenAndServe"), "127.0.0.1:8082", address)
	require.NoError(p.t, os.WriteFile(filepath.Join(dir, "main.go"), []byte(source), 0o600))
	require.NoError(p.t, os.WriteFile(filepath.Join(dir, "limits.yml"), []byte(p.config), 0o600))
	build := exec.Command("go", "build", "-o", filepath.Join(dir, "program"), filepath.Join(dir, "main.go"))
	build.Dir = ".." // whose modules it uses
	out, err := build.CombinedOutput()
	require.NoError(p.t, err, "%s", out)
	cmd := exec.Command(filepath.Join(dir, "program"))
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "RATELIMIT_DATABASE="+p.dsn)
	listen(p.t, cmd, address)
	return &api{t: p.t, url: "http://" + address}
}

func TestKongEnvoyNginxAndAGoProgramSpendOneLimitOfTheDatabaseExactly(t *testing.T) {
	t.Parallel()
	const limit = 400
	p := newPlane(t)
	p.operate("policy", "put", "year", "--tenant", "acme", "--limit", fmt.Sprint(limit), "--window", "31536000",
		"--algorithm", "fixed_window", "--accuracy", "exact", "--reason", "one limit for all doors")
	kong := p.node("kong", p.dsn)
	control, conn := p.envoyDoor(forwardFlags(t, "127.0.0.1")...)
	proxy := nginx(t, backend(t), strings.TrimPrefix(control.url, "http://"))
	program := p.goProgram()

	askKong := func() (answer, error) { return kong.send(http.MethodGet, "/records", "apikey", "alice") }
	askGo := func() (answer, error) { return program.send(http.MethodGet, "/records", "", "X-Tenant", "acme") }
	doors := map[string]door{
		"Kong":  byHTTP(askKong),
		"nginx": byHTTP(func() (answer, error) { return proxy.send(http.MethodGet, "/records", "", "apikey", "alices-key") }),
		"Envoy": byEnvoy(t, conn, "tenant", "acme"),
		"Go":    byHTTP(askGo),
	}
	// These two count by the config until they have read the row: it has the same name, so the count goes on. The control
	// server answers nothing before.
	spent := int64(0)
	for _, ask := range []func() (answer, error){askKong, askGo} {
		await.That(t, "the limit of the database", func() bool {
			a, err := ask()
			require.NoError(t, err)
			require.Equal(t, http.StatusOK, a.Status)
			spent++
			return a.Header.Get("X-RateLimit-Limit") == strconv.Itoa(limit)
		})
	}
	admitted := race(t, doors, 3, 50)
	if all := spent + sum(t, admitted); all != limit {
		t.Errorf("all doors have admitted %d of 600, want %d", all, limit)
	}
	for _, name := range slices.Sorted(maps.Keys(doors)) {
		if admitted, err := doors[name](); admitted || err != nil {
			t.Errorf("%s admits a request beyond the limit (%v)", name, err)
		}
	}
}
