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
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/debian"
)

const (
	// packaged is where Debian's packages put the programs: one folder a major version, none of them in the PATH.
	packaged = "/usr/lib/postgresql/*/bin"
	// account is the user that Debian's packages make, and that stands in for root.
	account = "postgres"
)

// programs is the folder of initdb, pg_ctl and postgres.
var programs = sync.OnceValues(func() (string, error) { return debian.Find("postgresql", lookUp) })

// lookUp finds the newest packaged Postgres, else the one in the PATH.
func lookUp() (string, error) {
	found, err := filepath.Glob(packaged + "/postgres")
	if err == nil && len(found) > 0 {
		return filepath.Dir(slices.MaxFunc(found, func(a, b string) int { return major(a) - major(b) })), nil
	}
	path, err := exec.LookPath("postgres")
	return filepath.Dir(path), err
}

// major is the version in a packaged program's path.
func major(path string) int {
	version, err := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(path))))
	if err != nil {
		return 0 // a folder that is no version comes last
	}
	return version
}

// command is one of Postgres's programs, run as a user that it accepts.
func command(name string, args ...string) (*exec.Cmd, error) {
	dir, err := programs()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(filepath.Join(dir, name), args...)
	cmd.Dir = "/" // the user may not enter the working folder of the test
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

// ids are the numbers of the account that stands in for root.
func ids() (uid, gid int, err error) {
	who, err := user.Lookup(account)
	if err != nil {
		return 0, 0, fmt.Errorf("find a user to run postgres as: %w", err)
	}
	if uid, err = strconv.Atoi(who.Uid); err == nil {
		gid, err = strconv.Atoi(who.Gid)
	}
	if err != nil {
		return 0, 0, fmt.Errorf("read the ids of the user %s: %w", account, err)
	}
	return uid, gid, nil
}

// folder makes a temporary folder that belongs to the user that postgres runs as. Its path is short: that of a unix
// socket has at most 107 bytes, and the names of tests are long.
func folder() (string, error) {
	dir, err := os.MkdirTemp(swift())
	if err != nil || os.Geteuid() != 0 {
		return dir, err
	}
	uid, gid, err := ids()
	if err == nil {
		err = os.Chown(dir, uid, gid)
	}
	return dir, err
}

func must(t testing.TB, doing string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", doing, err)
	}
}
