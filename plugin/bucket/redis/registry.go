package redis

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// Registry holds the connections of a process: one for all instances whose settings reach the same Redis in the same
// way, opened for the first of them and closed with the last. It keeps no settings but those in use. Make it with
// [NewRegistry].
type Registry struct {
	log     *slog.Logger
	script  *script
	newGate NewGate
	pause   time.Duration // before the second check of a connection
	opened  chan struct{} // has room for one: unchecked is not empty

	mu        sync.Mutex
	inUse     map[[sha256.Size]byte]*connection
	unchecked []*connection
	ended     bool
}

// NewRegistry returns a registry without connections; [Registry.Run] checks those that are opened, and closes them at
// the end. Each server gets a new gate; nil: none. The messages of go-redis, which has one logger for the whole
// process, go to log at the level debug.
func NewRegistry(log *slog.Logger, gate NewGate) *Registry { return newRegistry(log, gate, takeScript) }

func newRegistry(log *slog.Logger, gate NewGate, script *script) *Registry {
	redis.SetLogger(libraryLog{log})
	if gate == nil {
		gate = func(string, string, time.Duration) Gate { return openGate{} }
	}
	return &Registry{
		log: log, script: script, newGate: gate, pause: time.Second,
		opened: make(chan struct{}, 1), inUse: map[[sha256.Size]byte]*connection{},
	}
}

// libraryLog is go-redis's logger. Each of its messages also reaches us as the error of a command.
type libraryLog struct{ log *slog.Logger }

// Printf implements go-redis's logging interface.
func (l libraryLog) Printf(ctx context.Context, format string, args ...any) {
	if l.log.Enabled(ctx, slog.LevelDebug) {
		l.log.DebugContext(ctx, fmt.Sprintf(format, args...), "library", "go-redis")
	}
}

// Open returns the store of a redis block, and a function to call once when it is no longer used: the last such call
// closes the connection, which takes no longer than the commands in flight. Open does not wait for Redis, which may be
// unavailable. It fails when the block names no Redis, or certificates that cannot be read.
func (r *Registry) Open(block schema.Redis) (*Store, func(), error) {
	c, release, err := r.acquire(block)
	if err != nil {
		return nil, nil, fmt.Errorf("open redis: %w", err)
	}
	return c.store, release, nil
}

// acquire returns the connection of a redis block, and the function that releases it.
func (r *Registry) acquire(block schema.Redis) (*connection, func(), error) {
	s, err := normalize(block)
	if err != nil {
		return nil, nil, err
	}
	id := s.fingerprint()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended {
		return nil, nil, errors.New("the process is shutting down")
	}
	c, ok := r.inUse[id]
	if !ok {
		c = connect(s, r.script, r.newGate)
		c.store = newStore(s.place(), c, r.script, r.log)
		c.store.location = s.location()
		r.inUse[id] = c
		r.unchecked = append(r.unchecked, c)
		select {
		case r.opened <- struct{}{}:
		default: // Run has a signal already
		}
	}
	c.users++
	return c, sync.OnceFunc(func() { r.release(id, c) }), nil
}

// release ends one use of a connection, and closes it after the last.
func (r *Registry) release(id [sha256.Size]byte, c *connection) {
	r.mu.Lock()
	c.users--
	last := c.users == 0 && r.inUse[id] == c // else Run has closed it
	if last {
		delete(r.inUse, id)
	}
	r.mu.Unlock()
	if !last {
		return
	}
	if err := c.close(); err != nil {
		r.log.Warn("closing a connection to Redis", "redis", c.settings.place(), "error", err)
	}
}

// Run checks every connection once in the background until ctx ends; then it closes those that are still in use, after
// which nothing can be opened.
func (r *Registry) Run(ctx context.Context) error {
	var watching sync.WaitGroup
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-r.opened:
			for _, c := range r.takeUnchecked() {
				watching.Go(func() { c.watch(ctx, r.log, r.pause) })
			}
		}
	}
	watching.Wait()
	r.mu.Lock()
	left := slices.Collect(maps.Values(r.inUse))
	clear(r.inUse)
	r.unchecked, r.ended = nil, true
	r.mu.Unlock()
	var errs []error
	for _, c := range left {
		errs = append(errs, c.close())
	}
	return errors.Join(errs...)
}

func (r *Registry) takeUnchecked() []*connection {
	r.mu.Lock()
	defer r.mu.Unlock()
	unchecked := r.unchecked
	r.unchecked = nil
	return unchecked
}
