package server

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

// orphanTimeout is how long a process that Kong started continues without its Kong and without a connection.
const orphanTimeout = 10 * time.Second

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
	return !slices.ContainsFunc(environ, isForeign) || (err == nil && strings.TrimSpace(string(name)) == "nginx")
}

// isForeign reports whether a variable is not one that a shell sets. Kong starts plugins through a shell.
func isForeign(variable string) bool {
	name, _, _ := strings.Cut(variable, "=")
	return !slices.Contains([]string{"PWD", "OLDPWD", "SHLVL", "_"}, name)
}

// observation holds what a process can see of its Kong at one instant.
type observation struct {
	taken    bool   // another process has the socket
	orphaned bool   // the parent is gone
	open     int    // connections
	accepted uint64 // connections since the start
}

// orphanCheck decides when a process that Kong started ends: without Kong and without a connection for orphanTimeout.
// The zero value has no observations.
type orphanCheck struct {
	quiet    time.Time // since when there was no connection and no Kong; zero: there was one
	accepted uint64
}

// observe records an observation, and reports whether the process should end: another process has its socket or its
// parent is gone, and there was no connection for orphanTimeout.
func (c *orphanCheck) observe(now time.Time, o observation) bool {
	connected := o.open > 0 || o.accepted != c.accepted
	c.accepted = o.accepted
	switch {
	case connected || (!o.taken && !o.orphaned):
		c.quiet = time.Time{}
	case c.quiet.IsZero():
		c.quiet = now
	}
	return !c.quiet.IsZero() && now.Sub(c.quiet) >= orphanTimeout
}

// guard watches over a process's socket and its parent.
type guard struct {
	path       string
	own        os.FileInfo // what lay at path when this process had opened it
	parent     int         // 0: Kong did not start this process, which then never ends by itself
	taken      chan struct{}
	log        *slog.Logger
	clients    func() (open int, accepted uint64)
	superseded atomic.Bool // another process has the socket, and there is no connection
}

// Superseded implements outage.Process.
func (g *guard) Superseded() bool { return g.superseded.Load() }

// watch closes taken when another process has taken over the socket, and calls end when Kong has left this process
// alone. It ends with ctx. Without a file at the path, no process has taken the socket.
func (g *guard) watch(ctx context.Context, end func()) error {
	ticker := time.NewTicker(inspection)
	defer ticker.Stop()
	var check orphanCheck
	for taken := false; ; {
		select {
		case <-ctx.Done():
			return nil
		case now := <-ticker.C:
			if file, err := os.Stat(g.path); !taken && err == nil && !os.SameFile(g.own, file) {
				taken = true
				close(g.taken)
			}
			o := observation{taken: taken, orphaned: g.parent != 0 && os.Getppid() != g.parent}
			o.open, o.accepted = g.clients()
			g.superseded.Store(taken && o.open == 0)
			if g.parent != 0 && check.observe(now, o) {
				g.log.Warn(
					"shutting down: the Kong that started this process is gone or uses another one, and no client is connected",
					"socket_taken", o.taken, "parent_gone", o.orphaned, "for", orphanTimeout)
				end()
				return nil
			}
		}
	}
}
