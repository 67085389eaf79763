package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/node/supervisor"
)

const (
	// startTime bounds the time from the start of a worker until it is ready: it may wait for the database's rows.
	startTime = time.Minute
	// endTime is how long a worker may take after the drain time: leases go back, usage is reported.
	endTime = 10 * time.Second
)

// supervise opens the sockets for paths, or takes those of systemd, and keeps a worker behind them until ctx ends.
func supervise(
	ctx context.Context, s *settings, paths, args []string, getenv func(string) string, stderr io.Writer, log *slog.Logger,
) error {
	program, err := exec.LookPath(os.Args[0]) // and not os.Executable: an upgrade may replace a link to the binary
	if err != nil {
		return fmt.Errorf("find the executable: %w", err)
	}
	sockets, err := activated(getenv, paths)
	for i := 0; err == nil && len(sockets) < len(paths); i++ {
		var one *socket
		if one, err = listen(paths[i]); err == nil {
			sockets = append(sockets, one)
			defer func() { _ = os.Remove(one.beside) }() // unless it was published
		}
	}
	if err != nil {
		return err
	}
	parent := os.Getppid()
	ends := s.endsWithKong(os.Environ(), parent)
	o := supervisor.Options{
		Program: program, Args: slices.Concat(args, []string{"-end-with-kong", strconv.FormatBool(ends)}), Stderr: stderr,
		StartTime: startTime, EndTime: s.DrainTime + endTime, Log: log,
		Open: func() error {
			return errors.Join(sockets[0].publish(log), sockets[1].publish(log))
		},
		Close: func() {
			for _, one := range sockets {
				one.stopListening()
			}
		},
		State: func() (state byte) {
			if sockets[0].isTaken() {
				state |= stateTaken
			}
			if ends && os.Getppid() != parent {
				state |= stateOrphaned
			}
			return state
		},
	}
	for _, one := range sockets {
		o.Sockets = append(o.Sockets, one.File)
	}
	return supervisor.Run(ctx, o)
}
