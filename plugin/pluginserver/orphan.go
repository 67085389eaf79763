package pluginserver

import (
	"context"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// lonely is how long a process that Kong started goes on without its Kong and without a connection.
const lonely = 10 * time.Second

// supervisors are variables that name a supervisor as the parent: it ends the process itself.
var supervisors = []string{
	"INVOCATION_ID", "NOTIFY_SOCKET", "LISTEN_FDS", "SUPERVISOR_ENABLED", "KUBERNETES_SERVICE_HOST",
}

// startedByKong reports whether one of Kong's workers started this process, which has an empty environment then, or an
// nginx as its parent. A process without a parent but init was started by something else.
func startedByKong(environ []string, parent int) bool {
	for _, variable := range environ {
		name, _, _ := strings.Cut(variable, "=")
		for _, supervisor := range supervisors {
			if name == supervisor {
				return false
			}
		}
	}
	if parent <= 1 {
		return false
	}
	name, err := os.ReadFile("/proc/" + strconv.Itoa(parent) + "/comm")
	return !slices.ContainsFunc(environ, notAShells) || (err == nil && strings.TrimSpace(string(name)) == "nginx")
}

// notAShells reports whether a variable is none that a shell sets by itself: Kong starts plugins through one.
func notAShells(variable string) bool {
	name, _, _ := strings.Cut(variable, "=")
	return !slices.Contains([]string{"PWD", "OLDPWD", "SHLVL", "_"}, name)
}

// sight is what a process sees of its Kong at one instant.
type sight struct {
	taken    bool   // another process has the socket
	orphaned bool   // the parent is gone
	open     int    // connections
	accepted uint64 // connections since the start
}

// vigil decides when a process that Kong started has been left alone for good. The zero value has seen nothing.
type vigil struct {
	quiet    time.Time // since when there was no connection and no Kong; zero: there was one
	accepted uint64
}

// look records what is seen now, and reports whether the process should end: another process has its socket or its
// parent is gone, and for all of lonely there was no connection.
func (v *vigil) look(now time.Time, s sight) bool {
	connected := s.open > 0 || s.accepted != v.accepted
	v.accepted = s.accepted
	switch {
	case connected || (!s.taken && !s.orphaned):
		v.quiet = time.Time{}
	case v.quiet.IsZero():
		v.quiet = now
	}
	return !v.quiet.IsZero() && now.Sub(v.quiet) >= lonely
}

// guard watches over a process's socket and its parent.
type guard struct {
	path    string
	own     os.FileInfo // what lay at path when this process had opened it
	parent  int         // 0: Kong did not start this process, which then never ends by itself
	taken   chan struct{}
	log     *slog.Logger
	clients func() (open int, accepted uint64)
	isAway  atomic.Bool // another process has the socket, and there is no connection
}

// Away implements outage.Process.
func (g *guard) Away() bool { return g.isAway.Load() }

// watch closes taken when another process has taken over the socket, and calls end when Kong has left this process
// alone. It ends with ctx. Without a file at the path, no process has taken the socket.
func (g *guard) watch(ctx context.Context, end func()) error {
	ticker := time.NewTicker(inspection)
	defer ticker.Stop()
	var v vigil
	for taken := false; ; {
		select {
		case <-ctx.Done():
			return nil
		case now := <-ticker.C:
			if file, err := os.Stat(g.path); !taken && err == nil && !os.SameFile(g.own, file) {
				taken = true
				close(g.taken)
			}
			s := sight{taken: taken, orphaned: g.parent != 0 && os.Getppid() != g.parent}
			s.open, s.accepted = g.clients()
			g.isAway.Store(taken && s.open == 0)
			if g.parent != 0 && v.look(now, s) {
				g.log.Warn(
					"shutting down: the Kong that started this process is gone or uses another one, and no client is connected",
					"socket_taken",
					s.taken,
					"parent_gone",
					s.orphaned,
					"for",
					lonely,
				)
				end()
				return nil
			}
		}
	}
}
