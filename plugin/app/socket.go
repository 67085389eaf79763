package app

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strconv"
)

// maxSocketPath is what fits into the kernel's address of a unix socket.
const maxSocketPath = 107

// listen opens the socket at path, taking it over from whoever has it: the new socket is bound beside it and renamed
// over it, so there is no instant without one. Nobody removes the path at the end, because by then it may belong to
// the process that took it over; a stale path fails as a missing one does.
func listen(path string) (net.Listener, error) {
	beside := path + "." + strconv.Itoa(os.Getpid())
	if len(beside) > maxSocketPath {
		return nil, fmt.Errorf("socket path %s is too long for a unix socket (%d bytes with its process id, at most %d): choose a shorter -kong-prefix", path, len(beside), maxSocketPath)
	}
	if err := os.Remove(beside); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("remove what an earlier process of this id left: %w", err)
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: beside, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen on the socket (does the directory of -kong-prefix exist, and may this user write to it?): %w", err)
	}
	listener.SetUnlinkOnClose(false)
	if err := os.Rename(beside, path); err != nil {
		return nil, errors.Join(fmt.Errorf("take over the socket: %w", err), listener.Close(), os.Remove(beside))
	}
	return listener, nil
}
