package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

func TestNoErrorShowsAPassword(t *testing.T) {
	const secret = "hunter2"
	file := filepath.Join(t.TempDir(), "dsn")
	for _, dsn := range []string{
		"postgres://ann:hunter2@127.0.0.1:1/rates?connect_timeout=2",
		"host=127.0.0.1 port=1 user=ann password=hunter2 connect_timeout=2",
		"postgres://ann:hunter2@127.0.0.1:port/rates",
		"postgres://ann:hunter2/rates@127.0.0.1/rates",
		"postgres://ann:hunter2%@127.0.0.1/rates",
		"host=127.0.0.1 port=none password=hunter2",
		"host=127.0.0.1 password='hunter2",
		"postgres://127.0.0.1:1/rates?password=hunter2&sslmode=none",
	} {
		require.NoError(t, os.WriteFile(file, []byte(dsn+"\n"), 0o600))
		for _, args := range [][]string{
			{"policy", "list", "--database", dsn},
			{"policy", "list", "--database-file", file},
			{"migrate", "up", "--database", dsn},
			{"tier", "put", "gold", "--reason", "x", "--database", dsn},
		} {
			x := &terminal{t: t}
			if code := x.call(args...); code == 0 || x.output.Len() == 0 || strings.Contains(x.output.String(), secret) {
				t.Errorf("%q: exit code %d, output\n%s", args, code, x.output.String())
			}
		}
	}
}

func TestADatabaseThatLacksTablesOrRightsIsAnErrorThatNamesTheFix(t *testing.T) {
	dsn := pgtest.Shared(t).Database(t)
	pool := pgtest.Pool(t, dsn)
	do := func(statements string) {
		t.Helper()
		pgtest.Exec(t, pool, statements)
	}
	check := func(dsn, want string, args ...string) {
		t.Helper()
		x := &terminal{t: t, env: map[string]string{databaseVariable: dsn}}
		if code := x.call(args...); code != exitFailed || !strings.Contains(x.output.String(), want) {
			t.Errorf("%q: exit code %d, want %q in\n%s", args, code, want, x.output.String())
		}
	}
	create := []string{"token", "create", "ci", "--role", "admin", "--reason", "x"}
	do(`CREATE ROLE beggar; GRANT USAGE ON SCHEMA rate_limiter TO beggar`)
	check(dsn+"&options=-c%20role%3Dbeggar", "migrations/README.md", create...)
	do(`ALTER TABLE rate_limiter.policies RENAME accuracy TO later`)
	check(dsn, "run ratelimit migrate up", "policy", "list")
	do(`ALTER TABLE rate_limiter.tokens RENAME TO later`)
	check(dsn, "run ratelimit migrate up", create...)
}

func TestTheActorIsTheFlagElseTheVariableElseTheLoginElseTheDatabaseUser(t *testing.T) {
	config, err := pgx.ParseConfig("postgres://service@127.0.0.1/rates")
	require.NoError(t, err)
	env := map[string]string{actorVariable: "deploy"}
	login := "ann@laptop"
	c := call{operator: &operator{
		getenv: func(name string) string { return env[name] },
		login:  func() string { return login },
	}}
	c.change.actor = "bob"
	want := func(what, actor string) {
		t.Helper()
		if got := c.actor(config); got != actor {
			t.Errorf("%s: the actor is %q, want %q", what, got, actor)
		}
	}
	want("all are there", "bob")
	c.change.actor = ""
	want("without the flag", "deploy")
	clear(env)
	want("without the variable", "ann@laptop")
	login = ""
	want("without a login", "service")
}

func TestSpansWindowsAndFactorsAreReadExactly(t *testing.T) {
	for _, c := range []struct {
		text    string
		seconds int64
	}{{"60", 60}, {"90s", 90}, {"24h", 86400}, {"30d", 2592000}, {"1m30s", 90}} {
		var seconds int64
		if err := parseWindow(c.text, &seconds); err != nil || seconds != c.seconds {
			t.Errorf("window %s: %d seconds (%v), want %d", c.text, seconds, err, c.seconds)
		}
	}
	readFactor := func(text string) (schema.Factor, error) {
		var o schema.Override
		c := newCall(new(operator), versionCommand)
		fieldFlag(c, schema.FieldNamed[schema.Override]("factor"), &o)
		err := c.flags.Parse([]string{"--factor", text})
		return o.Factor, err
	}
	for _, c := range []struct {
		text, shown string
		thousandths schema.Factor
	}{
		{"1.5", "1.5", 1500},
		{"2", "2", 2000},
		{"0.001", "0.001", 1},
		{"1.999", "1.999", 1999},
		{".25", "0.25", 250},
		{"10", "10", 10000},
	} {
		got, err := readFactor(c.text)
		if err != nil || got != c.thousandths || got.String() != c.shown {
			t.Errorf("factor %s: %d (%v), shown as %s; want %d and %s", c.text, got, err, got, c.thousandths, c.shown)
		}
	}
	for _, text := range []string{
		"", ".", "-1", "1.5x", "0", "0.000", "1.2345", "1e3", "99999999999", "+1", "1.-5", "1000.001",
	} {
		if n, err := readFactor(text); err == nil {
			t.Errorf("factor %q is read as %d", text, n)
		}
	}
	for _, text := range []string{"", "0d", "-1d", "1.5d", "36601d", "213504d", "99999999999d", "36600d1s"} {
		if err := parseSpan(text, new(time.Duration)); err == nil {
			t.Errorf("span %q is taken", text)
		}
	}
}

func TestATokenFileHasOneToken(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	for text, fault := range map[string]string{
		"secret\n": "", "": file + " must hold one token", "one\ntwo\n": file + " must hold one token",
	} {
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		c := newCall(&operator{}, fleetCommand)
		c.door = doorFlags{server: "http://LOCALHOST:8090", tokenFile: file}
		rest, err := c.remoteAPI()
		if fault == "" && (err != nil || rest.Token != "secret") || fault != "" && !strings.Contains(fmt.Sprint(err), fault) {
			t.Errorf("%q: %v, want %q", text, err, fault)
		}
	}
}
