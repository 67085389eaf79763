package pgtest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/debian"
)

// cluster is the data of a stopped server. Servers start with a copy of it, which takes a tenth of the time of initdb
// and migrations. [Close] removes it.
type cluster struct {
	fill func() (*Server, error) // starts the server

	once sync.Once
	dir  string
	err  error
}

var (
	// migratedCluster has the template of the databases.
	migratedCluster = &cluster{fill: func() (*Server, error) {
		s, err := launch((*Server).initialize)
		if err == nil {
			err = s.makeTemplate()
		}
		return s, err
	}}
	// grantedCluster also has the roles, the database and the grants of migrations/README.md.
	grantedCluster = &cluster{fill: func() (*Server, error) {
		s, err := create()
		if err == nil {
			err = s.grant()
		}
		return s, err
	}}
)

// start starts a server with a copy of the cluster.
func (c *cluster) start() (*Server, error) {
	c.once.Do(func() { c.err = c.keep() })
	if c.err != nil {
		return nil, c.err
	}
	return launch(func(s *Server) error { return copyFolder(filepath.Join(c.dir, "data"), s.data()) })
}

// keep stops a new server and keeps its data.
func (c *cluster) keep() error {
	s, err := c.fill()
	if s == nil {
		return err
	}
	if err == nil {
		err = s.end(syscall.SIGINT)
	}
	if err != nil {
		return errors.Join(err, s.remove())
	}
	c.dir = s.Dir
	return nil
}

// copyFolder copies a folder with the rights and owners of its files.
func copyFolder(from, to string) error {
	if output, err := exec.Command("cp", "-Rp", from, to).CombinedOutput(); err != nil {
		return fmt.Errorf("copy the data of postgres: %w: %s", err, debian.LastLine(output))
	}
	return nil
}

// Close ends the server of [Shared] and removes the data that servers start with. [Main] calls it. A package with
// another TestMain calls it after its tests.
func Close() error {
	var err error
	if s := sharedMade.Load(); s != nil {
		err = s.remove()
	}
	return errors.Join(err, os.RemoveAll(migratedCluster.dir), os.RemoveAll(grantedCluster.dir))
}
