package cli

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/golden"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/policysync"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

// noon is the clock of the operator's program in tests. It is after that of the database, so an override that ends soon
// after noon is still in force.
var noon = time.Date(2099, 1, 1, 12, 0, 0, 0, time.UTC)

// terminal is where a test calls the program.
type terminal struct {
	t      *testing.T
	env    map[string]string
	stdin  string
	store  *rows.DB // nil: there is no database
	output bytes.Buffer
}

// call runs the program and returns its exit code.
func (x *terminal) call(args ...string) int {
	o := operator{
		getenv: func(name string) string { return x.env[name] },
		login:  func() string { return "ann@laptop" },
		now:    func() time.Time { return noon },
		stdin:  strings.NewReader(x.stdin), stdout: screen{to: &x.output}, stderr: screen{to: &x.output},
	}
	return o.run(x.t.Context(), args)
}

// TestTranscripts plays the files of testdata/ratelimit: each calls the program on a database of its own, line by line.
// The database has the tables, unless the file calls migrate. "$ ratelimit …" is a call, "% node NAME VERSION" the
// report of a node, which enforces that version, "% silent NAME" makes its last report an hour old, "% counts NAME" has
// a node report counts of a candidate, "% snapshot" has a node save its rows as DIR/policies.snapshot, "% reset TENANT
// POLICIES" records a reset by the REST API, "% redis" starts a Redis, with the config that names it as
// DIR/buckets.yml, and "% spend TENANT ADDRESS COST" spends from the buckets of requests without a user.
func TestTranscripts(t *testing.T) {
	files, err := filepath.Glob("testdata/ratelimit/*.transcript")
	if err != nil || len(files) == 0 {
		t.Fatalf("found %v (%v), want transcripts", files, err)
	}
	server := pgtest.Shared(t)
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			play(t, file, server)
		})
	}
}

func play(t *testing.T, file string, server *pgtest.Server) {
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	create := server.Database
	if bytes.Contains(want, []byte("$ ratelimit migrate ")) {
		create = server.Empty
	}
	dsn := create(t) + "&connect_timeout=60" // a busy machine may take longer than the five seconds of the program
	x := &terminal{t: t, env: map[string]string{databaseVariable: dsn}, store: rows.New(pgtest.Pool(t, dsn))}
	dir := t.TempDir()
	lines := bufio.NewScanner(bytes.NewReader(want))
	for lines.Scan() {
		line := lines.Text()
		if line != "" && strings.ContainsAny(line[:1], "#$%") {
			fmt.Fprintln(&x.output, line)
		}
		switch {
		case strings.HasPrefix(line, "$ ratelimit "):
			if code := x.call(words(t, strings.ReplaceAll(strings.TrimPrefix(line, "$ ratelimit "), "DIR", dir))...); code != 0 {
				fmt.Fprintf(&x.output, "[exit %d]\n", code)
			}
			x.output.WriteString("\n")
		case strings.HasPrefix(line, "% node "):
			x.report(dsn, strings.Fields(line)[2:])
		case strings.HasPrefix(line, "% counts "):
			x.count(dsn, strings.Fields(line)[2])
		case strings.HasPrefix(line, "% silent "):
			x.silence(dsn, strings.Fields(line)[2])
		case strings.HasPrefix(line, "% reset "):
			x.reset(strings.Fields(line)[2:])
		case line == "% redis":
			text, err := os.ReadFile(onRedis(t, redistest.Single(t)))
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, "buckets.yml"), text, 0o600)
			}
			require.NoError(t, err)
		case strings.HasPrefix(line, "% spend "):
			x.spend(filepath.Join(dir, "buckets.yml"), strings.Fields(line)[2:])
		case line == "% snapshot":
			x.save(dsn, dir)
		}
	}
	golden.Check(t, file, masked(strings.ReplaceAll(x.output.String(), dir, "DIR")))
}

// report reports a node.
func (x *terminal) report(dsn string, words []string) {
	x.t.Helper()
	version, err := strconv.ParseInt(words[1], 10, 64)
	if err == nil {
		r := policysync.Report{Node: words[0], Version: version, Source: policysync.FromPostgres}
		err = r.Write(x.t.Context(), pgtest.Pool(x.t, dsn))
	}
	if err != nil {
		x.t.Fatalf("report %v: %v", words, err)
	}
}

// spend spends from the buckets that a tenant and an address have by a config.
func (x *terminal) spend(file string, words []string) {
	x.t.Helper()
	cost, err := strconv.ParseInt(words[2], 10, 64)
	require.NoError(x.t, err)
	spend(x.t, file, identity.Identity{
		Tenant: identity.Name{Kind: identity.Tenant, ID: words[0]},
		User:   identity.Name{Kind: identity.IP, ID: words[1]},
		IP:     words[1], Method: "GET", Path: "/",
	}, cost)
}

// count reports what a node has counted beside the active policies under a candidate, for two hours.
func (x *terminal) count(dsn, candidate string) {
	x.t.Helper()
	_, err := pgtest.Pool(x.t, dsn).Exec(x.t.Context(), `SELECT rate_limiter.report_candidate('n1', $1, 1, '2 hours', '[
		{"tenant": "acme", "endpoint": "search", "policy": "", "requests": 2000, "active_only": 0, "candidate_only": 30,
			"both": 5},
		{"tenant": "acme", "endpoint": "search", "policy": "daily", "requests": 2000, "active_only": 0, "candidate_only": 30,
			"both": 5, "examples": [{"at": "2026-11-22T10:00:00Z", "denied_by": "candidate",
			"active": "daily: 1000 per 86400 s", "candidate": "daily: 400 per 86400 s"}]},
		{"tenant": "globex", "endpoint": "search", "policy": "", "requests": 1000, "active_only": 2, "candidate_only": 0,
			"both": 0}]')`, candidate)
	if err != nil {
		x.t.Fatalf("report counts: %v", err)
	}
}

// silence makes the last report of a node an hour old.
func (x *terminal) silence(dsn, node string) {
	x.t.Helper()
	pool := pgtest.Pool(x.t, dsn)
	const older = `UPDATE rate_limiter.nodes SET reported_at = reported_at - interval '1 hour' WHERE node = $1`
	pgtest.Exec(x.t, pool, older, node)
}

// reset records a reset of the buckets of a tenant's policies in the audit, as the REST API does.
func (x *terminal) reset(words []string) {
	x.t.Helper()
	var emptied []rows.EmptiedBucket
	for _, name := range words[1:] {
		emptied = append(emptied, rows.EmptiedBucket{Policy: name, Used: 3})
	}
	details, err := json.Marshal(map[string]any{"buckets": emptied})
	if err == nil {
		by := rows.Change{Actor: "token:ci", Reason: "billed twice"}
		reset := rows.Action{Operation: "reset", Key: "buckets", Tenant: words[0], Details: details}
		err = x.store.Do(x.t.Context(), by, reset, nil, func(context.Context) error { return nil })
	}
	if err != nil {
		x.t.Fatalf("reset %v: %v", words, err)
	}
}

// save has a node load all rows and, at its end, save them.
func (x *terminal) save(dsn, dir string) {
	x.t.Helper()
	ctx, stop := context.WithCancel(x.t.Context())
	defer stop()
	node, err := policysync.New(policysync.Options{
		Source: policysync.Source{DSN: dsn}, Dir: dir, Log: slog.New(slog.DiscardHandler),
		Changed: func(*policy.Snapshot) { stop() },
	})
	if err == nil {
		err = node.Run(ctx)
	}
	if err == nil {
		err = os.Rename(filepath.Join(dir, policysync.FileName), filepath.Join(dir, "policies.snapshot"))
	}
	if err != nil {
		x.t.Fatalf("save the rows: %v", err)
	}
}

var (
	aTime     = regexp.MustCompile(`20[0-8]\d-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)`)
	aDuration = regexp.MustCompile(`\d+\.\d\d s\b`)
	aSecret   = regexp.MustCompile(`rl_[A-Za-z0-9_-]{43}`)
	aHookKey  = regexp.MustCompile(`whsec_[A-Za-z0-9+/]{43}=`)
	aMessage  = regexp.MustCompile(`(?:msg|test)_[A-Z2-7]{26}`)
	aSpread   = regexp.MustCompile(`"(spread|waited)_ms": \d+`)

	aShareSeen = regexp.MustCompile(`(?m)^(\w+ +(?:10|86400) +)[\d.]+$`) // of a window, by a candidate

	// The lists of migrations, so that a new migration changes no transcript.
	appliedFiles = regexp.MustCompile(`(?m)(^applied \d{5}_\w+\.sql\n)+`)
	doneFiles    = regexp.MustCompile(`(?m)(^\d+ +\d{5}_\w+\.sql +YYYY-MM-DDThh:mm:ssZ\n)+`)
	pendingFiles = regexp.MustCompile(`(?m)(^\d+ +\d{5}_\w+\.sql( +-)?\n)+`)
	listHeader   = regexp.MustCompile(`(?m)^(NUMBER) +(FILE)(?: +(APPLIED AT))?$`)
	lastFile     = regexp.MustCompile(`(revert(?:ing|ed)) \d{5}_\w+\.sql(?: deletes [^:]+)?`)
)

// masked returns an output without what differs from run to run.
func masked(text string) string {
	text = aSecret.ReplaceAllString(text, "rl_(secret)")
	text = aHookKey.ReplaceAllString(text, "whsec_(secret)")
	text = aMessage.ReplaceAllString(text, "msg_(id)")
	text = aTime.ReplaceAllString(text, "YYYY-MM-DDThh:mm:ssZ")
	text = aDuration.ReplaceAllString(text, "(a moment)")
	text = aShareSeen.ReplaceAllString(text, "${1}N")
	text = appliedFiles.ReplaceAllString(text, "applied (migrations)\n")
	text = doneFiles.ReplaceAllString(text, "(migrations)  YYYY-MM-DDThh:mm:ssZ\n")
	text = pendingFiles.ReplaceAllString(text, "(migrations)  -\n")
	text = listHeader.ReplaceAllString(text, "$1 $2 $3")
	text = lastFile.ReplaceAllString(text, "$1 (a migration)")
	return aSpread.ReplaceAllString(text, `"${1}_ms": N`)
}

// words returns the arguments of a line, some of them in quotes.
func words(t *testing.T, line string) []string {
	t.Helper()
	var list []string
	word, quote, begun := "", rune(0), false
	for _, r := range line {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote == 0 && (r == '"' || r == '\''):
			quote, begun = r, true
		case quote == 0 && r == ' ':
			if begun {
				list = append(list, word)
			}
			word, begun = "", false
		default:
			word, begun = word+string(r), true
		}
	}
	if quote != 0 {
		t.Fatalf("a quote is open in %q", line)
	}
	if begun {
		list = append(list, word)
	}
	return list
}
