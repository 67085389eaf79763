package migrations_test

import (
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
)

var update = flag.Bool("update", false, "rewrite testdata/schema.sql")

// TestTheSchemaIsAsPublished compares the dump of a migrated database, with its grants, with testdata/schema.sql.
func TestTheSchemaIsAsPublished(t *testing.T) {
	const file = "testdata/schema.sql"
	dump := pgtest.Granted(t).Dump(t)
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(dump), 0o666))
	}
	published, err := os.ReadFile(file)
	require.NoError(t, err)
	got, want := strings.Split(dump, "\n"), strings.Split(string(published), "\n")
	for i := range min(len(got), len(want)) {
		if got[i] != want[i] {
			t.Fatalf("%s:%d is %q, and the database has %q; -update rewrites the file", file, i+1, want[i], got[i])
		}
	}
	if len(got) != len(want) {
		t.Errorf("%s has %d lines, and the database %d; -update rewrites the file", file, len(want), len(got))
	}
}
