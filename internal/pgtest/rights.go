package pgtest

import (
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The roles of migrations/README.md.
const (
	Owner    = "owner"
	Node     = "node"
	Operator = "operator"
	Keeper   = "keeper"
	// ServerRole is the role of the process that serves the REST API.
	ServerRole = "server"
)

// Roles lists the roles of migrations/README.md that have rights on the tables, without their owner.
var Roles = []string{Node, Operator, ServerRole, Keeper}

const (
	// rightsDatabase is the database that the README creates.
	rightsDatabase = "ratelimit"

	// setUpBlock creates the roles and the database.
	setUpBlock = "-- As a superuser, once: the roles and the database."
	// GrantsBlock grants the rights, as the role that has migrated.
	GrantsBlock = "-- As owner, after every ratelimit migrate up: the grants."
	// HandOverBlock gives the tables of a superuser to the owner, as that superuser.
	HandOverBlock = "-- As a superuser, in that database, once: give what another user has migrated to owner."
)

// Granted starts a server with the roles, the database and the grants of migrations/README.md. The role Owner, which is
// no superuser, has migrated it.
func Granted(t testing.TB) *Server {
	t.Helper()
	s, err := grantedCluster.start()
	require.NoError(t, err, "start postgres with the grants")
	t.Cleanup(func() { require.NoError(t, s.remove(), "end postgres") })
	return s
}

// grant creates the database of [Granted].
func (s *Server) grant() error {
	err := s.runBlock(s.DSN(superuser), setUpBlock)
	if err == nil {
		err = s.migrate(s.RoleDSN(Owner))
	}
	if err == nil {
		err = s.runBlock(s.RoleDSN(Owner), GrantsBlock)
	}
	return err
}

// SetUpRoles runs the README's block that creates the roles and the database.
func (s *Server) SetUpRoles(t testing.TB) {
	t.Helper()
	require.NoError(t, s.runBlock(s.DSN(superuser), setUpBlock), "set up the roles")
}

// RunBlock runs a block of SQL of the README as a role: GrantsBlock or HandOverBlock.
func (s *Server) RunBlock(t testing.TB, role, block string) {
	t.Helper()
	require.NoError(t, s.runBlock(s.RoleDSN(role), block), "run as %s: %s", role, block)
}

// MigrateAs applies all migrations to the README's database as a role.
func (s *Server) MigrateAs(t testing.TB, role string) {
	t.Helper()
	require.NoError(t, s.migrate(s.RoleDSN(role)), "migrate as "+role)
}

// RoleDSN returns the connection string of a role to the README's database.
func (s *Server) RoleDSN(role string) string {
	return fmt.Sprintf("postgres://%s@%s/%s?sslmode=disable", url.PathEscape(role), s.Address(), rightsDatabase)
}

// Psql runs a script with psql and fails the test at the first statement that fails.
func (s *Server) Psql(t testing.TB, dsn, script string) {
	t.Helper()
	require.NoError(t, s.psql(dsn, script), "run a script")
}

func (s *Server) psql(dsn, script string) error {
	cmd, err := command("psql", "--no-psqlrc", "--quiet", "--set", "ON_ERROR_STOP=1", "--dbname", dsn)
	if err != nil {
		return err
	}
	cmd.Stdin = strings.NewReader(script)
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("psql: %w: %s", err, output)
	}
	return nil
}

func (s *Server) runBlock(dsn, begins string) error {
	script, err := readmeBlock(begins)
	if err != nil {
		return err
	}
	return s.psql(dsn, script)
}

var sqlBlock = regexp.MustCompile("(?s)```sql\n(.*?)```")

func readmeBlock(begins string) (string, error) {
	module, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		return "", err
	}
	text, err := os.ReadFile(filepath.Join(filepath.Dir(string(module)), "migrations", "README.md"))
	if err != nil {
		return "", err
	}
	for _, block := range sqlBlock.FindAllStringSubmatch(string(text), -1) {
		if strings.HasPrefix(block[1], begins) {
			return block[1], nil
		}
	}
	return "", fmt.Errorf("migrations/README.md has no block that begins with %q", begins)
}

// noise matches lines of a dump that are comments, settings of the session, or differ by the version of pg_dump.
var noise = regexp.MustCompile(`(?m)^(--.*|SET .*|SELECT pg_catalog\.set_config.*|\\(un)?restrict .*)\n`)

var blankLines = regexp.MustCompile(`\n{3,}`)

// Dump returns the tables, functions and rights of the README's database, as pg_dump writes them, without the list of
// migrations and without what depends on the version of pg_dump.
func (s *Server) Dump(t testing.TB) string {
	t.Helper()
	cmd, err := command("pg_dump", "--schema-only", "--exclude-table", "rate_limiter.migrations*", s.RoleDSN(superuser))
	require.NoError(t, err, "find pg_dump")
	output, err := cmd.Output()
	require.NoError(t, err, "dump the database")
	text := noise.ReplaceAllString(string(output), "")
	return strings.TrimSpace(blankLines.ReplaceAllString(text, "\n\n")) + "\n"
}
