package pgtest

import (
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// WrongSecret is the password in the connection string of [Denied].
const WrongSecret = "hunter2"

// Denied starts a server that requires the password of role ann, and returns a connection string with a wrong one.
func Denied(t testing.TB) (dsn string) {
	t.Helper()
	server := Start(t)
	dsn = server.Database(t)
	pool := Pool(t, dsn)
	_, err := pool.Exec(t.Context(), `CREATE ROLE ann LOGIN PASSWORD 'right'`)
	must(t, "create a role", err)
	server.Stop(t)
	rules := "host all postgres 127.0.0.1/32 trust\nhost all ann 127.0.0.1/32 scram-sha-256\n"
	must(t, "require a password", os.WriteFile(filepath.Join(server.Dir, "data", "pg_hba.conf"), []byte(rules), 0o600))
	server.Start(t)
	parsed, err := url.Parse(dsn)
	must(t, "parse the connection string", err)
	parsed.User = url.UserPassword("ann", WrongSecret)
	parsed.RawQuery = "" // the default: two attempts, with TLS and without
	return parsed.String()
}

// WantPlain fails the test if a text has the password of [Denied] or words of the driver, or lacks one of words.
func WantPlain(t testing.TB, text string, words ...string) {
	t.Helper()
	for _, noise := range []string{WrongSecret, "SQLSTATE", "failed to connect", "failed SASL", "\n\t"} {
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
