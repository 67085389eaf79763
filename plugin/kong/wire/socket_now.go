//go:build linux && !race

package wire

import (
	"syscall"
	"unsafe"
)

// readNow, writeNow and acceptNow use sockets that do not block, so they bypass Go's scheduler, as replaceNow does. It
// would wake its monitor thread for every event of a plugin that is not busy, which costs more than the event.

func readNow(fd uintptr, p []byte) (int, syscall.Errno)  { return now(syscall.SYS_READ, fd, p) }
func writeNow(fd uintptr, p []byte) (int, syscall.Errno) { return now(syscall.SYS_WRITE, fd, p) }

func now(call, fd uintptr, p []byte) (int, syscall.Errno) {
	for {
		n, _, err := syscall.RawSyscall(call, fd, uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)))
		switch err {
		case 0:
			return int(n), 0
		case syscall.EINTR:
		default:
			return 0, err
		}
	}
}

// replaceNow closes the connection of fd and makes fd a copy of spare, for Go to close later. It reports success.
func replaceNow(fd, spare uintptr) bool {
	for {
		_, _, err := syscall.RawSyscall(syscall.SYS_DUP3, spare, fd, syscall.O_CLOEXEC)
		if err != syscall.EINTR {
			return err == 0
		}
	}
}

// acceptNow returns a connection that does not block.
func acceptNow(fd uintptr) (uintptr, syscall.Errno) {
	for {
		n, _, err := syscall.RawSyscall6(
			syscall.SYS_ACCEPT4, fd, 0, 0, syscall.SOCK_NONBLOCK|syscall.SOCK_CLOEXEC, 0, 0,
		)
		if err != syscall.EINTR {
			return n, err
		}
	}
}
