//go:build linux && race

package wire

import "syscall"

// acceptNow returns a connection that does not block.
func acceptNow(fd uintptr) (uintptr, syscall.Errno) {
	for {
		n, _, err := syscall.Accept4(int(fd), syscall.SOCK_NONBLOCK|syscall.SOCK_CLOEXEC)
		if number := errno(err); number != syscall.EINTR {
			return uintptr(max(n, 0)), number
		}
	}
}
