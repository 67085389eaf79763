package pgtest

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/migrations"
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

	// The first words of the README's blocks of SQL.
	setUpBlock  = "-- As a superuser, once: the roles and the database."
	grantsBlock = "-- As owner, after every ratelimit migrate up: the grants."
	handBlock   = "-- As a superuser, in that database, once: give what another user has migrated to owner."
)

// Granted starts a server with the roles, the database and the grants of migrations/README.md. The role Owner, which is
// no superuser, has migrated it.
func Granted(t testing.TB) *Server {
	t.Helper()
	s := Start(t)
	s.SetUpRoles(t)
	s.MigrateAs(t, Owner)
	s.GrantAs(t, Owner)
	return s
}

// SetUpRoles runs the README's block that creates the roles and the database.
func (s *Server) SetUpRoles(t testing.TB) {
	t.Helper()
	s.Psql(t, s.DSN(superuser), readmeBlock(t, setUpBlock))
}

// GrantAs runs the README's grants as the role that has migrated.
func (s *Server) GrantAs(t testing.TB, role string) {
	t.Helper()
	s.Psql(t, s.RoleDSN(role), readmeBlock(t, grantsBlock))
}

// HandOver runs the README's block that gives the tables of a superuser to the owner.
func (s *Server) HandOver(t testing.TB) {
	t.Helper()
	s.Psql(t, s.RoleDSN(superuser), readmeBlock(t, handBlock))
}

// MigrateAs applies all migrations to the README's database as a role.
func (s *Server) MigrateAs(t testing.TB, role string) {
	t.Helper()
	config, err := pgx.ParseConfig(s.RoleDSN(role))
	if err == nil {
		_, err = migrations.Up(context.Background(), config)
	}
	must(t, "migrate as "+role, err)
}

// RoleDSN returns the connection string of a role to the README's database.
func (s *Server) RoleDSN(role string) string {
	return fmt.Sprintf("postgres://%s@%s/%s?sslmode=disable", url.PathEscape(role), s.Address(), rightsDatabase)
}

// Psql runs a script with psql and fails the test at the first statement that fails.
func (s *Server) Psql(t testing.TB, dsn, script string) {
	t.Helper()
	cmd, err := command("psql", "--no-psqlrc", "--quiet", "--set", "ON_ERROR_STOP=1", "--dbname", dsn)
	must(t, "find psql", err)
	cmd.Stdin = strings.NewReader(script)
	if output, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("psql: %v: %s", err, output)
	}
}

var sqlBlock = regexp.MustCompile("(?s)```sql\n(.*?)```")

// readmeBlock returns the block of SQL in migrations/README.md that begins with a text.
func readmeBlock(t testing.TB, begins string) string {
	t.Helper()
	_, here, _, _ := runtime.Caller(0)
	text, err := os.ReadFile(filepath.Join(filepath.Dir(here), "..", "..", "migrations", "README.md"))
	must(t, "read the grants", err)
	for _, block := range sqlBlock.FindAllStringSubmatch(string(text), -1) {
		if strings.HasPrefix(block[1], begins) {
			return block[1]
		}
	}
	t.Fatalf("migrations/README.md has no block that begins with %q", begins)
	return ""
}
