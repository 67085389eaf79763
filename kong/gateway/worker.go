package gateway

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	// startStep is the time between two checks of a request that waits for a start in flight (Kong's get_instance_id).
	startStep = 100 * time.Millisecond
	// idleConns is Kong's lua_socket_pool_size.
	idleConns = 256
)

// worker simulates one nginx worker: it has its own instances of every plugin configuration and its own idle
// connections. Unlike nginx's, it runs requests in parallel.
type worker struct {
	socket   string
	node     *node
	options  *Options
	sequence atomic.Int64 // of calls

	mu        sync.Mutex
	instances map[string]*instance // by plugin id
	idle      []*Conn
	checked   time.Time // when the idle connections were last checked for being closed
	closed    bool
}

// instance is a plugin's instance in a worker. While it starts it is a claim, for which all other requests wait.
type instance struct {
	plugin   string // "" until it has started once
	id       int32
	sequence int64
	starting bool
}

func newWorker(socket string, n *node, options *Options) *worker {
	w := &worker{socket: socket, node: n, options: options, instances: map[string]*instance{}}
	w.sequence.Store(1) // Kong's first call has the number 2
	return w
}

// run sends an event of a request to the plugin. In access a nil error with x.exit set is an exit, and any other error
// ends in a 500.
//
// Kong forgets the instances before it replays an event, and once more after that: its workers also send each other a
// message to do so, which arrives later.
func (w *worker) run(phase string, config *instanceConfig, x *exchange, forgetInstances func(plugin string)) error {
	deadline, replayed := time.Now().Add(w.options.replayFor), false
	defer func() {
		if replayed {
			forgetInstances(config.plugin)
		}
	}()
	for {
		err := w.runOnce(phase, config, x)
		switch {
		case err == nil, errors.Is(err, errExited):
			return nil
		case !errors.Is(err, errClosed):
			return err
		case replayed && !time.Now().Before(deadline):
			return fmt.Errorf("replayed for %s: %w", w.options.replayFor, err)
		}
		forgetInstances(config.plugin)
		w.node.log.Warn("replay event", "error", err, "request_id", x.requestID)
		w.node.counters.Replays.Add(1)
		replayed = true
	}
}

func (w *worker) runOnce(phase string, config *instanceConfig, x *exchange) error {
	id, err := w.instanceID(config)
	if err != nil {
		return err
	}
	c, err := w.acquire()
	if err != nil {
		return err
	}
	return w.release(c, c.handleEvent(id, phase, x))
}

// instanceID returns the id of the configuration's instance, and starts the instance if needed. A configuration
// with another __seq__ is a changed one: it starts anew, then the old instance closes. Kong raises on an error here.
func (w *worker) instanceID(config *instanceConfig) (int32, error) {
	for range w.options.ClaimWait / startStep {
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
	w.node.counters.Stalls.Add(1)
	return 0, fmt.Errorf("could not claim instance_id for %s (key: %s)", config.plugin, config.pluginID)
}

// start starts the claimed instance. Where the call cannot be written Kong raises before it drops its claim, which then
// blocks the configuration in this worker until a request has waited for the whole of ClaimWait.
func (w *worker) start(config *instanceConfig, claimed, previous *instance) (int32, error) {
	var id int32
	c, err := w.acquire()
	if err == nil {
		id, err = c.StartInstance(config.plugin, config.json)
		err = w.release(c, err)
	}
	w.mu.Lock()
	switch {
	case err == nil:
		claimed.id, claimed.plugin, claimed.starting = id, config.plugin, false
	case !errors.Is(err, errWrite):
		delete(w.instances, config.pluginID)
	}
	w.mu.Unlock()
	if err != nil { // which is no errClosed: Kong raises, and the client gets a 500 without a replay
		return 0, errors.New("starting instance: " + err.Error())
	}
	if previous != nil {
		w.closeInstance(previous.id)
	}
	return id, nil
}

// closeInstance closes an instance. Kong ignores a failure.
func (w *worker) closeInstance(id int32) {
	c, err := w.acquire()
	if err == nil {
		err = w.release(c, c.CloseInstance(id))
	}
	if err != nil {
		w.node.log.Debug("close instance", "instance", id, "error", err)
	}
}

// forgetInstances drops the instances of a plugin, but not claims, which have no plugin before their first start.
func (w *worker) forgetInstances(plugin string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for key, in := range w.instances {
		if in.plugin == plugin {
			delete(w.instances, key)
		}
	}
}

// acquire returns an idle connection, or a new one. As in Kong the plugin may have closed it: nginx notices that only
// when it next handles events.
func (w *worker) acquire() (*Conn, error) {
	if c := w.takeIdle(); c != nil {
		return c, nil
	}
	return dial(w.socket, w.node, &w.sequence, w.options.eventTimeout)
}

// takeIdle returns an idle connection, or nil.
func (w *worker) takeIdle() *Conn {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dropClosed()
	n := len(w.idle)
	if n == 0 {
		return nil
	}
	c := w.idle[n-1]
	w.idle = w.idle[:n-1]
	return c
}

// dropClosed closes the idle connections that the plugin has closed, once in NoticeAfter. w.mu is held.
func (w *worker) dropClosed() {
	now := time.Now()
	if now.Sub(w.checked) < w.options.NoticeAfter {
		return
	}
	w.checked = now
	w.idle = slices.DeleteFunc(w.idle, func(c *Conn) bool {
		alive := c.alive()
		if !alive {
			_ = c.Close() // nothing is unsent
		}
		return !alive
	})
}

// alive reports whether an idle connection has neither been closed nor received any bytes, as nginx notices by itself.
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

// release keeps a connection for the next call. It closes it after an error, as Kong does, and when enough are idle.
func (w *worker) release(c *Conn, callErr error) error {
	w.mu.Lock()
	keep := callErr == nil && !w.closed && len(w.idle) < idleConns
	if keep {
		w.idle = append(w.idle, c)
	}
	w.mu.Unlock()
	if keep {
		return nil
	}
	return errors.Join(callErr, c.Close())
}

// close closes the idle connections and keeps no more of them.
func (w *worker) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	for _, c := range w.idle {
		_ = c.Close() // nothing is unsent
	}
	w.idle = nil
}
