package cli

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/migrations"
)

// The transcripts leave out the names of files, so that a new migration changes none.
func TestMigrateNamesTheFilesAndWhatIsLost(t *testing.T) {
	files, err := filepath.Glob("../../migrations/*.sql")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d migrations (%v)", len(files), err)
	}
	x := &terminal{t: t, env: map[string]string{databaseVariable: pgtest.Shared(t).Empty(t)}}
	contains := func(want string, args ...string) {
		t.Helper()
		if x.output.Reset(); x.call(args...) == 1 || !strings.Contains(x.output.String(), want) {
			t.Errorf("%v: want %q in\n%s", args, want, x.output.String())
		}
	}
	applied := ""
	for i, file := range files {
		files[i] = filepath.Base(file)
		applied += "applied " + files[i] + "\n"
	}
	contains(applied, "migrate", "up")
	for number := len(files); number > len(files)-3; number-- {
		last := files[number-1]
		contains("reverting "+last+" deletes ", "migrate", "down")
		for _, table := range migrations.Tables(last) {
			contains(table, "migrate", "down")
		}
		contains("reverted "+last, "migrate", "down", "--yes")
	}
	contains(files[0]+" ", "migrate", "status")
}

func TestMigrateDownKeepsAnOpenCandidate(t *testing.T) {
	x := &terminal{t: t, env: map[string]string{databaseVariable: pgtest.Shared(t).Database(t)}}
	x.must("candidate", "create", "july", "--reason", "smaller limits")
	files, err := filepath.Glob("../../migrations/*.sql")
	require.NoError(t, err)
	for _, file := range slices.Backward(files) {
		if slices.Contains(migrations.Tables(filepath.Base(file)), "candidates") {
			break
		}
		x.must("migrate", "down", "--yes")
	}
	for _, args := range [][]string{{"migrate", "down"}, {"migrate", "down", "--yes"}} {
		x.output.Reset()
		if code := x.call(args...); code == 0 || !strings.Contains(x.output.String(), "candidate july is open, and") {
			t.Errorf("%v exits with %d: %s", args, code, x.output.String())
		}
	}
}

func TestMigrateUpWarnsOfASchemaThatBelongsToASuperuser(t *testing.T) {
	server := pgtest.Start(t)
	server.SetUpRoles(t)
	const warning = "owned by the superuser postgres"
	check := func(role string, warns bool) {
		t.Helper()
		x := &terminal{t: t, env: map[string]string{databaseVariable: server.RoleDSN(role)}}
		if code := x.call("migrate", "up"); code != 0 || strings.Contains(x.output.String(), warning) != warns {
			t.Errorf("migrate up as %s: exit code %d, want a warning: %v, in\n%s", role, code, warns, x.output.String())
		}
	}
	check("postgres", true)
	server.RunBlock(t, "postgres", pgtest.HandOverBlock)
	check("postgres", false)
	check(pgtest.Owner, false)
}
