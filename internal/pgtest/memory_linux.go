package pgtest

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/debian"
)

const (
	memory = "/dev/shm"
	// minFree is the memory that must be free there, in bytes. The databases of a package use a tenth of it.
	minFree = 2 << 30
)

// memoryFolder returns a folder in memory for the folders of servers, and the prefix of their names. The folder is "",
// the default one, if memory is short. Creating a database in memory takes a tenth of the time. memoryFolder first
// removes the folders of killed tests.
func memoryFolder() (parent, prefix string) {
	var free syscall.Statfs_t
	if syscall.Statfs(memory, &free) != nil || free.Bavail*uint64(free.Bsize) < minFree {
		return "", "pg"
	}
	left, _ := filepath.Glob(filepath.Join(memory, "pgtest-*-*")) // the pattern is valid
	for _, dir := range left {
		pid, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(dir), "pgtest-"), "-")
		if n, err := strconv.Atoi(pid); err == nil && n > 0 && errors.Is(syscall.Kill(n, 0), syscall.ESRCH) {
			_ = os.RemoveAll(dir) // it fails on a folder of another user, which stays
		}
	}
	return memory, "pgtest-" + strconv.Itoa(os.Getpid()) + "-"
}

// lockRun returns the path of a folder in memory for all packages of one run of go test, and locks it. The path is ""
// if memory is short, or if the parent of this process is not go. The folder above it is named for the process id of
// go and the time of its start, so no other run takes it. The first server that starts after the run removes it.
func lockRun(name string) (dir string, unlock func() error, err error) {
	parent, _ := memoryFolder()
	started, isGo := startOfGo(os.Getppid())
	if parent == "" || !isGo || os.Getenv(durable) != "" {
		return "", nil, nil
	}
	run := filepath.Join(parent, fmt.Sprintf("pgtest-%d-%s", os.Getppid(), started))
	if err := os.Mkdir(run, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return "", nil, err
	}
	unlock, err = debian.Lock(filepath.Join(run, name+".lock"))
	return filepath.Join(run, name), unlock, err
}

// startOfGo returns the time at which a process started, since the start of the machine, and whether its program is go.
func startOfGo(pid int) (started string, isGo bool) {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat") // pid (program) state …; see proc_pid_stat(5)
	_, stat, found := bytes.Cut(stat, []byte(" (go) "))
	if fields := strings.Fields(string(stat)); err == nil && found && len(fields) > startField {
		return fields[startField], true
	}
	return "", false
}

// startField is the index of the time of the start among the fields after the program.
const startField = 22 - 3

// endWithParent makes a process end with its parent, so that a killed test leaves no server behind.
func endWithParent(attributes *syscall.SysProcAttr) { attributes.Pdeathsig = syscall.SIGKILL }
