package server

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strconv"
	"time"
)

// maxSocketPath is what fits into the kernel's address of a unix socket.
const maxSocketPath = 107

// inspection is how often a process looks whether the socket is still its own.
const inspection = 250 * time.Millisecond

// listen opens the socket at path, taking it over from the process that has it: the new socket is bound beside it and
// renamed over it, so there is no instant without one. No process removes the path at its end, because by then it may
// belong to the process that took it over; a stale path fails as a missing one does. own is what lies at path from then
// on.
func listen(path string) (listener net.Listener, own os.FileInfo, err error) {
	beside := path + "." + strconv.Itoa(os.Getpid())
	if len(beside) > maxSocketPath {
		return nil, nil, fmt.Errorf(
			"socket path %s is too long for a unix socket (%d bytes with its process id, at most %d): choose a shorter -kong-prefix",
			path,
			len(beside),
			maxSocketPath,
		)
	}
	if err := os.Remove(beside); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, fmt.Errorf("remove what an earlier process of this id left: %w", err)
	}
	unix, err := net.ListenUnix("unix", &net.UnixAddr{Name: beside, Net: "unix"})
	if err != nil {
		return nil, nil, fmt.Errorf(
			"listen on the socket (does the directory of -kong-prefix exist, and may this user write to it?): %w",
			err,
		)
	}
	unix.SetUnlinkOnClose(false)
	if own, err = os.Stat(beside); err == nil {
		err = os.Rename(beside, path)
	}
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("take over the socket: %w", err), unix.Close(), os.Remove(beside))
	}
	return unix, own, nil
}
