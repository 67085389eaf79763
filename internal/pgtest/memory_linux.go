package pgtest

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
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
