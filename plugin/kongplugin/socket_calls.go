//go:build unix && (!linux || race)

package kongplugin

import (
	"errors"
	"syscall"
)

// readNow and writeNow are those of other systems. The race detector, too, knows the order of events in two ends of a
// socket only from these calls.

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
	errors.As(err, &number) // all errors of these calls are
	return number
}
