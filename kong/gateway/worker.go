package gateway

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	// startStep is how long a request that meets a start in flight waits
	// before it looks again (Kong's get_instance_id).
	startStep = 100 * time.Millisecond
	// idleConns is Kong's lua_socket_pool_size.
	idleConns = 256
)

// worker stands for one nginx worker: it has its own instances of every plugin
// configuration and its own idle connections. Unlike nginx's, it runs requests
// in parallel.
type worker struct {
	socket    string
	node      *node
	timeout   time.Duration
	replayFor time.Duration
	claimWait time.Duration
	notice    time.Duration
	sequence  atomic.Int64

	mu        sync.Mutex
	instances map[string]*instance // by plugin id
	idle      []*Conn
	looked    time.Time // when it looked last which idle connections are still alive
	closed    bool
}

// instance is a plugin's instance as a worker knows it; starting until the
// plugin has given it an id. While it starts it is a claim, for which all
// other requests wait.
type instance struct {
	plugin   string // "" until it has started once
	id       int32
	sequence int64
	starting bool
}

// acquire gives an idle connection, or a new one. As in Kong it may be one that
// the plugin has closed: nginx sees that with its next turn of events only.
func (w *worker) acquire() (*Conn, error) {
	w.mu.Lock()
	err := w.dropClosed()
	n := len(w.idle)
	if n == 0 || err != nil {
		w.mu.Unlock()
		if err != nil {
			return nil, err
		}
		return dial(w.socket, w.node, &w.sequence, w.timeout)
	}
	c := w.idle[n-1]
	w.idle = w.idle[:n-1]
	w.mu.Unlock()
	return c, nil
}

// dropClosed closes the idle connections that the plugin has closed, once in
// notice. w.mu is held.
func (w *worker) dropClosed() error {
	now := time.Now()
	if now.Sub(w.looked) < w.notice {
		return nil
	}
	w.looked = now
	var errs []error
	alive := w.idle[:0]
	for _, c := range w.idle {
		if c.alive() {
			alive = append(alive, c)
		} else if err := c.Close(); err != nil {
			errs = append(errs, fmt.Errorf("close idle connection: %w", err))
		}
	}
	clear(w.idle[len(alive):])
	w.idle = alive
	return errors.Join(errs...)
}

// release keeps a connection for the next call, or closes it: after an error
// (Kong never returns such a one to its pool), or when enough are idle.
func (w *worker) release(c *Conn, callErr error) error {
	w.mu.Lock()
	keep := callErr == nil && !w.closed && len(w.idle) < idleConns
	if keep {
		w.idle = append(w.idle, c)
	}
	w.mu.Unlock()
	if keep {
		return callErr
	}
	return errors.Join(callErr, c.Close())
}

// alive reports whether an idle connection has neither been closed nor sent
// anything unasked, as nginx notices of its own accord.
func (c *Conn) alive() bool {
	socket, ok := c.conn.(*net.UnixConn)
	if !ok || c.reader.Buffered() > 0 {
		return false
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return false
	}
	alive := false
	err = raw.Read(func(fd uintptr) bool {
		var one [1]byte
		_, _, err := syscall.Recvfrom(int(fd), one[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		alive = errors.Is(err, syscall.EAGAIN)
		return true
	})
	return err == nil && alive
}

// run sends a request's event to the plugin. A nil error with x.exit set is an
// exit; any other error ends in a 500.
func (w *worker) run(config *external, x *exchange, resetAll func(plugin string)) error {
	deadline := time.Now().Add(w.replayFor)
	for {
		err := w.runOnce(config, x)
		switch {
		case err == nil, errors.Is(err, errExited):
			return nil
		case !errors.Is(err, errLost):
			return err
		case !time.Now().Before(deadline):
			return fmt.Errorf("replayed for %s: %w", w.replayFor, err)
		}
		resetAll(config.plugin)
		x.logf(levelWarn, err.Error())
		w.node.counters.replays.Add(1)
	}
}

func (w *worker) runOnce(config *external, x *exchange) error {
	id, err := w.instanceID(config)
	if err != nil {
		return err
	}
	c, err := w.acquire()
	if err != nil {
		return err
	}
	return w.release(c, c.handleEvent(id, accessPhase, x))
}

// instanceID gives the id of the configuration's instance, starting it if need
// be. Configurations are told apart by their __seq__, so a changed one starts
// anew and then closes the old. An error here is one that Kong raises.
func (w *worker) instanceID(config *external) (int32, error) {
	for range w.claimWait / startStep {
		w.mu.Lock()
		current := w.instances[config.pluginID]
		if current != nil && current.starting {
			w.mu.Unlock()
			time.Sleep(startStep)
			continue
		}
		if current != nil && current.sequence == config.sequence {
			w.mu.Unlock()
			return current.id, nil
		}
		claimed := &instance{sequence: config.sequence, starting: true}
		if current != nil {
			claimed.plugin = current.plugin
		}
		w.instances[config.pluginID] = claimed
		w.mu.Unlock()
		return w.start(config, claimed, current)
	}
	w.mu.Lock()
	delete(w.instances, config.pluginID)
	w.mu.Unlock()
	w.node.counters.stalls.Add(1)
	return 0, fmt.Errorf("could not claim instance_id for %s (key: %s)", config.plugin, config.pluginID)
}

// start starts the instance that has been claimed. Where the call cannot be
// written Kong raises before it drops its claim, which then blocks the
// configuration in this worker until somebody has waited in vain.
func (w *worker) start(config *external, claimed, previous *instance) (int32, error) {
	var id int32
	c, err := w.acquire()
	if err == nil {
		id, err = c.StartInstance(config.plugin, config.json)
		err = w.release(c, err)
	}
	if errors.Is(err, errUnwritten) {
		return 0, errStart{err}
	}
	w.mu.Lock()
	if err != nil {
		delete(w.instances, config.pluginID)
	} else {
		claimed.id, claimed.plugin, claimed.starting = id, config.plugin, false
	}
	w.mu.Unlock()
	if err != nil {
		return 0, errStart{err}
	}
	if previous != nil {
		w.closeInstance(previous.id)
	}
	return id, nil
}

// errStart is a failed start. It is not errLost, even when the plugin closed
// the connection: Kong raises, and the client gets a 500 at once.
type errStart struct{ cause error }

func (e errStart) Error() string { return "starting instance: " + e.cause.Error() }

// closeInstance tells the plugin; Kong does not mind if that fails.
func (w *worker) closeInstance(id int32) {
	c, err := w.acquire()
	if err == nil {
		err = w.release(c, c.CloseInstance(id))
	}
	if err != nil {
		w.node.log.Debug("close instance", "instance", id, "error", err)
	}
}

// reset forgets the instances of a plugin, but for claims: those have no name
// before their first start.
func (w *worker) reset(plugin string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for key, in := range w.instances {
		if in.plugin == plugin {
			delete(w.instances, key)
		}
	}
}

// close closes the idle connections and keeps no more of them.
func (w *worker) close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	var errs []error
	for _, c := range w.idle {
		errs = append(errs, c.Close())
	}
	w.idle = nil
	return errors.Join(errs...)
}
