package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
)

func TestAFailedConnectionIsOneLineThatNamesWhereToCorrectIt(t *testing.T) {
	wrongPassword := pgtest.Denied(t)
	file := filepath.Join(t.TempDir(), "dsn")
	require.NoError(t, os.WriteFile(file, []byte(wrongPassword), 0o600))
	noPassword := strings.Replace(wrongPassword, ":"+pgtest.WrongSecret, "", 1)
	superuser := strings.Replace(wrongPassword, "ann:"+pgtest.WrongSecret, "postgres", 1)
	unknownDatabase := strings.Replace(superuser, "?", "x?", 1) + "x"
	unknownUser := strings.Replace(wrongPassword, "ann", "bob", 1)
	const closed = "postgres://ann:" + pgtest.WrongSecret + "@localhost:1/rates"
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
			pgtest.WantPlain(t, x.output.String(), c.want...)
		}
	}
}
