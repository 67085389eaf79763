package gateway

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
)

// server is a plugin server with each worker's side of the socket.
type server struct {
	info    *PluginInfo
	socket  string
	process *process // nil when somebody else runs it
	workers []*worker
}

// maxSocketPath is the longest path a unix socket's address can hold.
const maxSocketPath = 107

func newServer(ctx context.Context, given PluginServer, g *Gateway) (*server, error) {
	s := &server{info: given.Info, socket: given.Socket}
	if given.Binary != "" {
		info, err := QueryPlugin(ctx, given.Binary)
		if err != nil {
			return nil, err
		}
		s.info, s.socket = info, socketPath(g.options.Prefix, given.Binary)
		s.process = &process{
			binary: given.Binary, args: append([]string{"-kong-prefix", g.options.Prefix}, given.Args...),
			log: g.options.Log, name: info.Name, spawns: &g.counters.spawns,
		}
	}
	if len(s.socket) > maxSocketPath {
		return nil, fmt.Errorf("socket path %s is longer than %d bytes", s.socket, maxSocketPath)
	}
	if !slices.Contains(s.info.Phases, accessPhase) {
		return nil, fmt.Errorf("plugin %s has no access phase; no other is simulated", s.info.Name)
	}
	for range g.options.Workers {
		w := &worker{
			socket: s.socket, node: g.node, timeout: g.options.EventTimeout, replayFor: g.options.ReplayFor,
			claimWait: g.options.ClaimWait, notice: g.options.NoticeAfter, instances: map[string]*instance{},
		}
		w.sequence.Store(1) // Kong's first call has the number 2
		s.workers = append(s.workers, w)
	}
	return s, nil
}

// spawn keeps the server's process running until ctx ends.
func (s *server) spawn(ctx context.Context, running *sync.WaitGroup) {
	if s.process != nil {
		running.Go(func() { s.process.supervise(ctx) })
	}
}

// resetAll forgets a plugin's instances in every worker.
func (s *server) resetAll(plugin string) {
	for _, w := range s.workers {
		w.reset(plugin)
	}
}

func (s *server) close() error {
	var errs []error
	for _, w := range s.workers {
		errs = append(errs, w.close())
	}
	return errors.Join(errs...)
}
