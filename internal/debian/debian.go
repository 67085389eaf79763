// Package debian installs Debian packages for tests that need their programs, if the environment asks for it. The
// callers find the programs in them.
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

// asking is the variable of the environment that asks the tests to install what is missing. The Makefile sets it.
const asking = "INSTALL_MISSING"

// Asked returns nil if the environment asks to install what is missing, or an error that names what is missing and how
// to ask.
func Asked(missing string) error {
	if os.Getenv(asking) == "" {
		return fmt.Errorf("%s is missing: install it, or set %s=1 as make test does", missing, asking)
	}
	return nil
}

// Find returns the result of look. If look fails, Find installs a package and looks again, if it is asked to. One
// process installs at a time, because apt-get takes a lock. The others look again before they install.
func Find[T any](pkg string, look func() (T, error)) (found T, err error) {
	if found, err = look(); err == nil {
		return found, nil
	}
	if err := Asked("the package " + pkg); err != nil {
		return found, err
	}
	unlock, err := Lock(installing)
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
	return found, fmt.Errorf("%[1]s is missing and cannot be installed (%[2]w: %[3]s): apt-get install %[1]s",
		pkg, errors.Join(failure, err), LastLine(output))
}

// Program returns the path of a program of a package, which it installs as Find does.
func Program(pkg, name string) (path string, err error) {
	return Find(pkg, func() (string, error) { return exec.LookPath(name) })
}

// LastLine returns the last line of a program's output, which usually has the reason of a failure.
func LastLine(output []byte) string {
	lines := strings.Split(strings.TrimSpace(string(output)), "\n")
	return lines[len(lines)-1]
}

// installation installs $1, with new lists of packages if the ones at hand do not suffice. It waits for apt's lock,
// which another program may hold.
const installation = `export DEBIAN_FRONTEND=noninteractive
	install() { apt-get install -y --no-install-recommends -o DPkg::Lock::Timeout=120 "$1"; }
	install "$1" || { apt-get update && install "$1"; }`

// installing is the file that processes of this machine lock while they install.
var installing = filepath.Join(os.TempDir(), "apt-get-for-tests.lock")

// Lock locks a file, which other processes of this machine respect.
func Lock(path string) (unlock func() error, err error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o666)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file.Close, nil
}
