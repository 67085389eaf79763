package spec

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/kong/gateway"
)

// namedVersion matches the name of the newest version in CHANGELOG.md, and its commit.
var namedVersion = regexp.MustCompile(`(?s)\n## \[([0-9.]+)\].*?[Cc]ommit\s+([0-9a-f]{40})`)

// buildBefore builds the programs of the version before this one, and returns their folder, or "" if the history lacks
// its commit, as that of a shallow clone does. The sources are always in the same folder, so that the build cache has
// the programs the next time.
func buildBefore(t *testing.T) string {
	t.Helper()
	changes, err := os.ReadFile("../CHANGELOG.md")
	require.NoError(t, err)
	found := namedVersion.FindSubmatch(changes)
	require.NotNil(t, found, "CHANGELOG.md names no version with its commit")
	commit := string(found[2])
	if err := exec.Command("git", "cat-file", "-e", commit+"^{commit}").Run(); err != nil {
		t.Logf("nothing is tested: the history lacks %s, version %s: git fetch --unshallow", commit, found[1])
		return ""
	}
	sources, err := filepath.Abs(filepath.Join("../.cache/released", commit))
	require.NoError(t, err)
	script := `mkdir -p "$1"; git -C .. archive "$0" | tar -x -C "$1"; cd "$1"
		go build -ldflags='-s -w' -o bin/ ./plugin/cmd/tenant-rate-limiting ./plugin/cmd/ratelimit`
	out, err := exec.Command("/bin/sh", "-ec", script, commit, sources).CombinedOutput()
	require.NoError(t, err, "build version %s: %s", found[1], out)
	return filepath.Join(sources, "bin")
}

// rollout is a Postgres and a Redis that nodes of two versions share.
type rollout struct {
	t           *testing.T
	dsn         string
	redis       *redistest.Server
	before, now string // folders of programs
	spent       int    // requests of acme
}

// versionNode is a node of a rollout.
type versionNode struct {
	*node
	sent int
}

// node starts a node of a version. All nodes have one quota of acme, which no window ends.
func (r *rollout) node(programs, name, saved string) *versionNode {
	config := fmt.Sprintf(`{strategy: redis, redis: {socket: %s, %s}, tiers: [{name: enterprise, limits: [
		{name: year, scope: tenant, limit: 1000, window_size: 31536000, algorithm: fixed_window, accuracy: exact}]}]}`,
		r.redis.Socket, strings.NewReplacer(`"`, "", ":", ": ").Replace(patience))
	return &versionNode{node: start(r.t, deck(config), atDatabase(r.dsn, saved, "off"), func(o *gateway.Options) {
		o.Servers[0].Binary = filepath.Join(programs, "tenant-rate-limiting")
		o.Servers[0].Args = append(o.Servers[0].Args, "-node-name", name)
	})}
}

// ask sends a request of a tenant.
func (n *versionNode) ask(key string) answer {
	n.sent++
	return n.get("/records", "apikey", key)
}

// spend sends requests of acme to each node in turn. All count in one bucket.
func (r *rollout) spend(nodes ...*versionNode) {
	r.t.Helper()
	for range 5 {
		for _, n := range nodes {
			r.spent++
			a := n.ask("alice")
			assert.Equal(r.t, http.StatusOK, a.Status, a.Body)
			assert.Equal(r.t, fmt.Sprint(1000-r.spent), a.Header.Get("X-RateLimit-Remaining"), "after %d requests", r.spent)
		}
	}
}

// ratelimit runs the operator's program of a version, and compares its exit code and a part of what it writes.
func (r *rollout) ratelimit(programs string, exit int, part string, args ...string) {
	r.t.Helper()
	cmd := exec.Command(filepath.Join(programs, "ratelimit"), args...)
	cmd.Env = append(os.Environ(), "RATELIMIT_DATABASE="+r.dsn, "RATELIMIT_ACTOR=a tester", "PGCONNECT_TIMEOUT=60")
	out, _ := cmd.CombinedOutput() // the exit code is compared
	assert.Equal(r.t, exit, cmd.ProcessState.ExitCode(), "ratelimit %q: %s", args, out)
	assert.Contains(r.t, string(out), part, "ratelimit %q", args)
}

// ban lets the program of a version ban a tenant, and waits until all nodes enforce that.
func (r *rollout) ban(programs, tenant, key string, nodes ...*versionNode) {
	r.t.Helper()
	r.ratelimit(programs, 0, tenant, "override", "add", "--tenant", tenant, "--kind", "ban", "--permanent",
		"--reason", "a test")
	for _, n := range nodes {
		await.That(r.t, "a node enforces a ban of "+tenant, func() bool {
			return n.ask(key).Status == http.StatusTooManyRequests
		})
	}
}

func TestChaosNodesOfTheVersionBeforeShareLimitsAndPoliciesWithNewOnesAndAreTheWayBack(t *testing.T) {
	t.Parallel()
	before := buildBefore(t)
	if before == "" {
		return
	}
	postgres := pgtest.Start(t)
	r := &rollout{t: t, dsn: postgres.Empty(t), redis: redistest.Single(t), before: before, now: binaries}
	saved := t.TempDir()
	r.ratelimit(r.before, 0, "", "migrate", "up")
	old := r.node(r.before, "old", t.TempDir())
	r.spend(old)

	r.ratelimit(r.now, 1, "older than this program", "serve", "--listen", "127.0.0.1:0", "--metrics-listen", "")
	early := r.node(r.now, "early", t.TempDir())
	early.log.Await(t, "the tables in Postgres are older than this program: run ratelimit migrate up")
	r.spend(old, early)
	require.NoError(t, early.Close())

	r.ratelimit(r.now, 0, "", "migrate", "up")
	next := r.node(r.now, "next", saved)
	r.spend(old, next)
	r.ban(r.now, "beta", "beth", old, next)
	r.ban(r.before, "gamma", "gus", old, next)
	require.NoError(t, old.Close())
	require.NoError(t, next.Close()) // they report what they have counted
	g := &governed{t: t, dsn: r.dsn, rows: pgtest.Pool(t, r.dsn)}
	assert.EqualValues(t, early.sent+next.sent, g.unpack(), "usage: the requests to nodes of this version")
	setAside := g.one(`SELECT count(*) FROM rate_limiter.usage_batches WHERE fault <> ''`)
	assert.NotZero(t, setAside, "batches of the version before")

	// The way back: the newer tables, and the folder of the newer process.
	const newer = "the tables in Postgres are newer than this program"
	back := r.node(r.before, "next", saved)
	back.log.Await(t, "the tables are newer than this program")
	r.spend(back)
	r.ban(r.before, "ops", "ida", back)
	r.ratelimit(r.before, 1, newer, "migrate", "up")
	r.ratelimit(r.before, 1, newer, "serve", "--listen", "127.0.0.1:0", "--metrics-listen", "")
	r.ratelimit(r.before, 0, newer, "override", "list")
}
