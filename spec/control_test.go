package spec

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/freeport"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/logtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
)

// plane is the database, the Redis and the config that processes of the REST API and nodes share.
type plane struct {
	t        testing.TB
	postgres *pgtest.Server
	redis    *redistest.Server
	dsn      string // of Postgres
	rows     *pgxpool.Pool
	config   string // of the plugin, as YAML
	deck     string // the file with it
	admin    string // the secret of an admin's token
}

// shared is an exact limit of sixty requests for tenants of the tier enterprise, over all nodes. Its window is a year:
// none ends during a spec.
const shared = `tiers: [{name: enterprise,
    limits: [{name: year, scope: tenant, limit: 60, window_size: 31536000, algorithm: fixed_window, accuracy: exact}]},
        {name: essentials}]`

// newPlane starts a plane of shared.
func newPlane(t testing.TB) *plane {
	t.Helper()
	return planeOf(t, shared)
}

// planeOf starts a plane of a plugin config with the strategy redis.
func planeOf(t testing.TB, config string) *plane {
	t.Helper()
	postgres := pgtest.Start(t)
	return planeOn(t, config, postgres, postgres.Database(t))
}

// planeOn starts a plane of a plugin config on a database. dsn connects as the role that owns the tables.
func planeOn(t testing.TB, config string, postgres *pgtest.Server, dsn string) *plane {
	t.Helper()
	p := &plane{t: t, postgres: postgres, redis: redistest.Single(t), dsn: dsn}
	p.rows = pgtest.Pool(t, p.dsn)
	p.config = fmt.Sprintf("{strategy: redis, redis: {host: 127.0.0.1, port: %d, %s}, %s}", p.redis.Port, patience, config)
	p.deck = filepath.Join(t.TempDir(), "kong.yml")
	require.NoError(t, os.WriteFile(p.deck, []byte(deck(p.config)), 0o600))
	p.admin = p.token("ann", "admin")
	return p
}

// node starts a gateway with a plugin server that follows a database.
func (p *plane) node(name, dsn string) *node {
	p.t.Helper()
	return start(p.t, deck(p.config), serverWith("-database", dsn, "-snapshot-dir", "off", "-metrics-listen", "off",
		"-node-name", name))
}

// write changes the database as the role that owns the tables.
func (p *plane) write(statement string) {
	p.t.Helper()
	if _, err := p.rows.Exec(p.t.Context(), statement); err != nil {
		p.t.Fatalf("%s: %v", statement, err)
	}
}

// operate runs the operator's program.
func (p *plane) operate(args ...string) string {
	p.t.Helper()
	cmd := p.command(args...)
	cmd.Env = append(cmd.Env, "PGCONNECT_TIMEOUT=60") // a busy machine may take longer than the default of 5 s
	out, err := cmd.Output()
	if failed := new(exec.ExitError); errors.As(err, &failed) {
		p.t.Fatalf("ratelimit %q: %v\n%s%s", args, err, out, failed.Stderr)
	}
	if err != nil {
		p.t.Fatalf("ratelimit %q: %v", args, err)
	}
	return strings.TrimSpace(string(out))
}

// command returns a command of the operator's program.
func (p *plane) command(args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(binaries, "ratelimit"), args...)
	cmd.Env = append(os.Environ(), "RATELIMIT_DATABASE="+p.dsn, "RATELIMIT_ACTOR=a tester")
	return cmd
}

// token creates a token and returns its secret.
func (p *plane) token(name, role string) string {
	p.t.Helper()
	return p.operate("token", "create", name, "--role", role, "--reason", "a test")
}

// api is a process that serves the REST API.
type api struct {
	t       testing.TB
	url     string
	metrics string
	secret  string // of the token of requests
	log     *logtest.Text
	cmd     *exec.Cmd
	ended   chan error
}

// launch starts a process that serves the REST API, and does not wait.
func (p *plane) launch(args ...string) *api {
	p.t.Helper()
	address := freeport.Address(p.t)
	a := &api{url: "http://" + address, metrics: freeport.Address(p.t), secret: p.admin}
	return p.run(p.command(append([]string{
		"serve", "--listen", address, "--metrics-listen", a.metrics, "--config", p.deck, "--plugin-route", "records",
	}, args...)...), a)
}

// run starts the process of an API.
func (p *plane) run(cmd *exec.Cmd, a *api) *api {
	p.t.Helper()
	a.t, a.cmd, a.log, a.ended = p.t, cmd, &logtest.Text{}, make(chan error, 1)
	cmd.Stderr = a.log
	require.NoError(p.t, cmd.Start())
	exited := make(chan struct{})
	go func() {
		defer close(exited)
		a.ended <- cmd.Wait()
	}()
	p.t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		<-exited
		if p.t.Failed() {
			text := a.log.String()
			p.t.Logf("the end of the log of the process that serves the API:\n%s", text[max(0, len(text)-4000):])
		}
	})
	return a
}

// serve starts a process that serves the REST API, for an admin, and waits until it does.
func (p *plane) serve(args ...string) *api {
	p.t.Helper()
	a := p.launch(args...)
	await.That(p.t, "the API is ready", func() bool { return a.status("/readyz") == http.StatusOK })
	return a
}

// status returns the status of a GET, or 0 without an answer.
func (a *api) status(path string) int {
	got, err := a.send(http.MethodGet, path, "")
	if err != nil {
		return 0
	}
	return got.Status
}

// as returns the same API with another token.
func (a *api) as(secret string) *api {
	other := *a
	other.secret = secret
	return &other
}

// send sends a request; headers are pairs of name and value.
func (a *api) send(method, path, body string, headers ...string) (answer, error) {
	request, err := http.NewRequest(method, a.url+path, bytes.NewReader([]byte(body)))
	if err != nil {
		return answer{}, err
	}
	if a.secret != "" {
		request.Header.Set("Authorization", "Bearer "+a.secret)
	}
	if body != "" {
		request.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	response, err := client.Do(request)
	if err != nil {
		return answer{}, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return answer{response.StatusCode, response.Header, string(text)}, err
}

// want sends a request, fails the test unless the answer has a status, and decodes the answer into to, if not nil.
func (a *api) want(status int, to any, method, path, body string, headers ...string) answer {
	a.t.Helper()
	got, err := a.send(method, path, body, headers...)
	require.NoError(a.t, err)
	if got.Status != status {
		a.t.Fatalf("%s %s %s: %d, want %d\n%s", method, path, body, got.Status, status, got.Body)
	}
	if to != nil {
		if err := json.Unmarshal([]byte(got.Body), to); err != nil {
			a.t.Fatalf("%s %s: %v\n%s", method, path, err, got.Body)
		}
	}
	return got
}

// terminate sends SIGTERM to the process and returns its exit error.
func (a *api) terminate() error {
	a.t.Helper()
	require.NoError(a.t, a.cmd.Process.Signal(syscall.SIGTERM))
	return <-a.ended
}

// enforcement is the answer of a write that waits for the nodes.
type enforcement struct {
	Enforcement struct {
		Enforced bool     `json:"enforced"`
		Behind   []behind `json:"behind"`
	} `json:"enforcement"`
}

// behind is a node that does not enforce a change.
type behind struct {
	Node    string `json:"node"`
	Version int64  `json:"version"`
}
