//go:build linux && race

package wire

import "syscall"

// The race detector sees the code of Linux with the calls of package syscall in place of raw ones.

// replaceNow closes the connection of fd and makes fd a copy of spare, for Go to close later. It reports success.
func replaceNow(fd, spare uintptr) bool {
	return syscall.Dup3(int(spare), int(fd), syscall.O_CLOEXEC) == nil
}

// acceptNow returns a connection that does not block.
func acceptNow(fd uintptr) (uintptr, syscall.Errno) {
	for {
		n, _, err := syscall.Accept4(int(fd), syscall.SOCK_NONBLOCK|syscall.SOCK_CLOEXEC)
		if number := errno(err); number != syscall.EINTR {
			return uintptr(max(n, 0)), number
		}
	}
}
