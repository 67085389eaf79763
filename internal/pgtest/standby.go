package pgtest

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/debian"
)

// Standby starts a hot standby of the server. It follows the server until Promote or the end of the test.
func (s *Server) Standby(t testing.TB) *Server {
	t.Helper()
	standby, err := launch(s.copyTo)
	must(t, "start a standby", err)
	t.Cleanup(func() { must(t, "end the standby", standby.remove()) })
	return standby
}

// copyTo copies the server's data and the settings of replication to the folder of a standby.
func (s *Server) copyTo(standby *Server) error {
	cmd, err := command("pg_basebackup", "--pgdata", standby.data(), "--write-recovery-conf", "--checkpoint", "fast",
		"--no-sync", "--host", s.Host, "--port", strconv.Itoa(s.Port), "--username", superuser)
	if err != nil {
		return err
	}
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("pg_basebackup: %w: %s", err, debian.LastLine(output))
	}
	return nil
}

// Promote makes a standby writable and waits until it is.
func (s *Server) Promote(t testing.TB) {
	t.Helper()
	must(t, "promote the standby", s.do("SELECT pg_promote()"))
}

// Here returns the connection string of another server's database for the same database on this server.
func (s *Server) Here(other *Server, dsn string) string {
	return strings.Replace(dsn, other.Address(), s.Address(), 1)
}
