package pgtest

import (
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/debian"
)

const (
	// packaged matches the folders of the programs in Debian packages: one for each major version, outside of PATH.
	packaged = "/usr/lib/postgresql/*/bin"
	// account is the user that Debian packages create. Its programs run as this user if the tests run as root.
	account = "postgres"
)

// programs returns the folder of initdb, pg_ctl and postgres.
var programs = sync.OnceValues(func() (string, error) { return debian.Find("postgresql", lookUp) })

// lookUp finds the newest packaged Postgres, or else the one in PATH.
func lookUp() (string, error) {
	found, err := filepath.Glob(packaged + "/postgres")
	if err == nil && len(found) > 0 {
		return filepath.Dir(slices.MaxFunc(found, func(a, b string) int { return major(a) - major(b) })), nil
	}
	path, err := exec.LookPath("postgres")
	return filepath.Dir(path), err
}

// major returns the version in the path of a packaged program.
func major(path string) int {
	version, err := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(path))))
	if err != nil {
		return 0 // a folder without a version comes last
	}
	return version
}

// command returns a command for one of Postgres's programs, as a user that it accepts.
func command(name string, args ...string) (*exec.Cmd, error) {
	dir, err := programs()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(filepath.Join(dir, name), args...)
	cmd.Dir = "/" // the user may lack rights on the working folder of the test
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	endWithParent(cmd.SysProcAttr)
	if os.Geteuid() != 0 {
		return cmd, nil
	}
	uid, gid, err := ids()
	if err != nil {
		return nil, err
	}
	cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	return cmd, nil
}

func ids() (uid, gid int, err error) {
	found, err := user.Lookup(account)
	if err != nil {
		return 0, 0, fmt.Errorf("find a user to run postgres as: %w", err)
	}
	if uid, err = strconv.Atoi(found.Uid); err == nil {
		gid, err = strconv.Atoi(found.Gid)
	}
	if err != nil {
		return 0, 0, fmt.Errorf("read the ids of the user %s: %w", account, err)
	}
	return uid, gid, nil
}

// folder creates a temporary folder for the user that postgres runs as. Its path is short, because the path of a unix
// socket has at most 107 bytes.
func folder() (string, error) {
	parent, prefix := "", "pg"
	if os.Getenv(durable) == "" {
		parent, prefix = memoryFolder()
	}
	dir, err := os.MkdirTemp(parent, prefix)
	if err != nil || os.Geteuid() != 0 {
		return dir, err
	}
	uid, gid, err := ids()
	if err == nil {
		err = os.Chown(dir, uid, gid)
	}
	return dir, err
}
