// Package debian installs Debian's packages for tests that need their programs. Which programs, and where they lie, is
// the business of those who start them.
package debian

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// Find is what look finds, after a package is installed if need be and if this process may. Of several processes that
// miss something one installs at a time: apt-get refuses a second one, and the package that the others need may be
// there when their turn comes.
func Find[T any](pkg string, look func() (T, error)) (found T, err error) {
	if found, err = look(); err == nil {
		return found, nil
	}
	unlock, err := lock()
	if err != nil {
		return found, fmt.Errorf("install %s: %w", pkg, err)
	}
	defer func() { err = errors.Join(err, unlock()) }()
	if found, err = look(); err == nil {
		return found, nil
	}
	output, failure := exec.Command("sh", "-c", installation, "sh", pkg).CombinedOutput()
	if found, err = look(); err == nil {
		return found, nil
	}
	return found, fmt.Errorf(
		"%[1]s is missing and cannot be installed (%[2]w: %[3]s): apt-get install %[1]s",
		pkg,
		errors.Join(failure, err),
		LastLine(output),
	)
}

// LastLine is what a program said last, which mostly is why it failed.
func LastLine(output []byte) string {
	lines := strings.Split(strings.TrimSpace(string(output)), "\n")
	return lines[len(lines)-1]
}

// installation installs $1. Others than our tests may hold apt's lock for a while, too.
const installation = `apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends -o DPkg::Lock::Timeout=120 "$1"`

// lock waits for its turn among the processes of this machine.
func lock() (unlock func() error, err error) {
	file, err := os.OpenFile(filepath.Join(os.TempDir(), "apt-get-for-tests.lock"), os.O_CREATE|os.O_RDWR, 0o666)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file.Close, nil
}
