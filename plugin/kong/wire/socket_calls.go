//go:build unix && (!linux || race)

package wire

import (
	"errors"
	"syscall"
)

// readNow and writeNow read and write on other systems than Linux. The race detector needs them too: it learns the
// order of events at the two ends of a socket from the calls of package syscall.

func readNow(fd uintptr, p []byte) (int, syscall.Errno) {
	n, err := syscall.Read(int(fd), p)
	return max(n, 0), errno(err)
}

func writeNow(fd uintptr, p []byte) (int, syscall.Errno) {
	n, err := syscall.Write(int(fd), p)
	return max(n, 0), errno(err)
}

func errno(err error) syscall.Errno {
	if err == nil {
		return 0
	}
	var number syscall.Errno
	errors.As(err, &number) // all errors of these calls are numbers
	return number
}
