package app

import (
	"bytes"
	"context"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
)

const wrongSecret = "hunter2"

// strict starts a server that wants the password of role ann, and returns a connection string with a wrong one.
func strict(t *testing.T) (dsn string) {
	t.Helper()
	server := pgtest.Start(t)
	dsn = server.Database(t)
	pool := pgtest.Pool(t, dsn)
	if _, err := pool.Exec(t.Context(), `CREATE ROLE ann LOGIN PASSWORD 'right'`); err != nil {
		t.Fatal(err)
	}
	server.Stop(t)
	rules := "host all postgres 127.0.0.1/32 trust\nhost all ann 127.0.0.1/32 scram-sha-256\n"
	if err := os.WriteFile(filepath.Join(server.Dir, "data", "pg_hba.conf"), []byte(rules), 0o600); err != nil {
		t.Fatal(err)
	}
	server.Start(t)
	parsed, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	parsed.User = url.UserPassword("ann", wrongSecret)
	parsed.RawQuery = "" // as most write it: with TLS where there is any, else without, in two attempts
	return parsed.String()
}

// wantPlain fails a test whose text shows the password, a code or an attempt, or lacks one of some words.
func wantPlain(t *testing.T, text string, words ...string) {
	t.Helper()
	for _, noise := range []string{wrongSecret, "SQLSTATE", "failed to connect", "failed SASL", "\n\t"} {
		if strings.Contains(text, noise) {
			t.Errorf("%q is in\n%s", noise, text)
		}
	}
	for _, word := range words {
		if !strings.Contains(text, word) {
			t.Errorf("%q is not in\n%s", word, text)
		}
	}
}

func TestAFailedConnectionIsOneLineThatNamesWhereToCorrectIt(t *testing.T) {
	wrongPassword := strict(t)
	file := filepath.Join(t.TempDir(), "dsn")
	if err := os.WriteFile(file, []byte(wrongPassword), 0o600); err != nil {
		t.Fatal(err)
	}
	noPassword := strings.Replace(wrongPassword, ":"+wrongSecret, "", 1)
	unknownDatabase := strings.Replace(strings.Replace(wrongPassword, "ann:"+wrongSecret, "postgres", 1), "?", "x?", 1) + "x"
	unknownUser := strings.Replace(wrongPassword, "ann", "bob", 1)
	const closed = "postgres://ann:" + wrongSecret + "@localhost:1/rates"
	for _, c := range []struct {
		dsn  string
		args []string
		want []string
	}{
		{wrongPassword, nil, []string{`denied the password of user "ann"`, databaseVariable}},
		{"", []string{"--database", wrongPassword}, []string{`denied the password of user "ann"`, "--database"}},
		{"", []string{"--database-file", file}, []string{`denied the password of user "ann"`, "--database-file " + file}},
		{noPassword, nil, []string{"requires a password", databaseVariable}},
		{unknownUser, nil, []string{`denied the login of user "bob"`, databaseVariable}},
		{unknownDatabase, nil, []string{"has no database", databaseVariable}},
		{closed, nil, []string{"cannot connect to Postgres at localhost:1: connection refused", databaseVariable}},
	} {
		x := &terminal{t: t, env: map[string]string{databaseVariable: c.dsn}}
		for _, command := range [][]string{{"policy", "list"}, {"migrate", "status"}} {
			x.output.Reset()
			if code := x.call(append(command, c.args...)...); code != exitFailed || strings.Count(x.output.String(), "\n") != 1 {
				t.Errorf("%q: exit code %d, want %d and one line:\n%s", command, code, exitFailed, x.output.String())
			}
			wantPlain(t, x.output.String(), c.want...)
		}
	}
}

func TestServeLogsAFailedConnectionInOneLineThatNamesWhereToCorrectIt(t *testing.T) {
	s, c, err := serveOf(t, map[string]string{databaseVariable: strict(t)}, "--listen 127.0.0.1:0 --metrics-listen off")
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	pool, err := c.servePool(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	if err := s.anybody(t.Context(), pool, c.serveLog(&log, s.logLevel)); err != nil {
		t.Fatal(err)
	}
	if strings.Count(log.String(), "\n") != 1 {
		t.Errorf("logged\n%s\nwant one line", log.String())
	}
	wantPlain(t, log.String(), `denied the password of user \"ann\"`, databaseVariable)
}

func TestANodeLogsAFailedConnectionInOneLineThatNamesWhereToCorrectIt(t *testing.T) {
	s, err := parseSettings([]string{
		"-database", strict(t), "-snapshot-dir", "off", "-log-file", filepath.Join(t.TempDir(), "log"),
	}, func(string) string { return "" }, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	log := newLogging(&s, io.Discard)
	rows, err := newRows(&s, "node", log.Logger, func(*policy.Snapshot) {}, func() bool { return false })
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- rows.Run(ctx) }()
	for log.counted()["warn"] == 0 && ctx.Err() == nil {
		select {
		case err := <-ended:
			t.Fatal(err)
		case <-time.After(5 * time.Millisecond):
		}
	}
	cancel()
	<-ended
	log.close()
	text, err := os.ReadFile(s.LogFile)
	if err != nil {
		t.Fatal(err)
	}
	wantPlain(t, string(text), `denied the password of user \"ann\"`, "-database", "Postgres denies the login")
}
