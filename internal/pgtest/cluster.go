package pgtest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/debian"
)

// cluster is the data of a stopped server. Servers start with a copy of it, which takes a tenth of the time of initdb
// and migrations. The packages of one run of go test share it, if memory has room for it. Else [Close] removes it.
type cluster struct {
	name string                  // of its folder in the folder of a run
	fill func() (*Server, error) // starts the server

	once   sync.Once
	dir    string
	shared bool
	err    error
}

var (
	// migratedCluster has the template of the databases.
	migratedCluster = &cluster{name: "migrated", fill: func() (*Server, error) {
		s, err := launch((*Server).initialize)
		if err == nil {
			err = s.makeTemplate()
		}
		return s, err
	}}
	// grantedCluster also has the roles, the database and the grants of migrations/README.md.
	grantedCluster = &cluster{name: "granted", fill: func() (*Server, error) {
		s, err := create()
		if err == nil {
			err = s.grant()
		}
		return s, err
	}}
)

func (c *cluster) start() (*Server, error) {
	c.once.Do(func() { c.err = c.make() })
	if c.err != nil {
		return nil, c.err
	}
	return launch(func(s *Server) error { return copyFolder(filepath.Join(c.dir, "data"), s.data()) })
}

// make finds the cluster of this run of go test, or creates it.
func (c *cluster) make() error {
	dir, unlock, err := lockRun(c.name)
	if err != nil {
		return err
	}
	if dir == "" {
		c.dir, err = c.keep()
		return err
	}
	c.dir, c.shared = dir, true
	return errors.Join(c.makeShared(), unlock())
}

// makeShared creates the cluster, unless another process has: the folder gets its name when it is complete.
func (c *cluster) makeShared() error {
	if _, err := os.Stat(c.dir); err == nil {
		return nil
	}
	dir, err := c.keep()
	if err != nil {
		return err
	}
	return os.Rename(dir, c.dir)
}

// keep stops a new server and returns the folder with its data.
func (c *cluster) keep() (dir string, err error) {
	s, err := c.fill()
	if s == nil {
		return "", err
	}
	if err == nil {
		err = s.end(syscall.SIGINT)
	}
	if err != nil {
		return "", errors.Join(err, s.remove())
	}
	return s.Dir, nil
}

// remove removes a cluster that no other process has.
func (c *cluster) remove() error {
	if c.shared {
		return nil
	}
	return os.RemoveAll(c.dir)
}

// copyFolder copies a folder with the rights and owners of its files.
func copyFolder(from, to string) error {
	if output, err := exec.Command("cp", "-Rp", from, to).CombinedOutput(); err != nil {
		return fmt.Errorf("copy the data of postgres: %w: %s", err, debian.LastLine(output))
	}
	return nil
}

// Close ends the server of [Shared] and removes the data that servers start with, unless other packages use it. [Main]
// calls it. A package with another TestMain calls it after its tests.
func Close() error {
	var err error
	if s := sharedMade.Load(); s != nil {
		err = s.remove()
	}
	return errors.Join(err, migratedCluster.remove(), grantedCluster.remove())
}

// Standby starts a hot standby of the server. It follows the server until Promote or the end of the test.
func (s *Server) Standby(t testing.TB) *Server {
	t.Helper()
	standby, err := launch(s.copyTo)
	require.NoError(t, err, "start a standby")
	t.Cleanup(func() { require.NoError(t, standby.remove(), "end the standby") })
	return standby
}

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
	require.NoError(t, s.do("SELECT pg_promote()"), "promote the standby")
}

// Here returns the connection string of another server's database for the same database on this server.
func (s *Server) Here(other *Server, dsn string) string {
	return strings.Replace(dsn, other.Address(), s.Address(), 1)
}
