// Package supervisor keeps a worker process behind listening sockets that outlive it. A connection that is made while
// no worker accepts waits in the kernel. The supervisor starts the next worker before the current one ends, and another
// worker when one dies. It knows nothing of what workers do, so that it has hardly a reason to die.
//
// A worker is the program on the disk. [Join] returns what it inherits. A worker that is ready takes the place of the
// current one, which then hands over through the queue of each socket. Its standard input has orders, and ends with the
// supervisor. Its standard output has reports.
package supervisor

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"
)

// Options configures a supervisor. All fields are required.
type Options struct {
	Program   string
	Args      []string // of a worker
	Stderr    io.Writer
	Sockets   []*os.File    // listening; their descriptors do not block
	Open      func() error  // called when the first worker is ready, to let clients connect
	Close     func()        // called before the workers end with the supervisor, to let none connect any more
	State     func() byte   // what the current worker is to know: below 128, 0 at first
	StartTime time.Duration // how long a worker may take until it is ready
	EndTime   time.Duration // how long a worker may take to end
	Log       *slog.Logger
}

const (
	// inspection is the time between two calls of State.
	inspection = 250 * time.Millisecond
	// startEvery is the least time between two starts in place of workers that have died.
	startEvery = time.Second

	handOver = 255 // the order to hand over and end; other orders are the state
)

// The reports of a worker.
const (
	Ready = 'r' // it can serve, once the queues have let it
	Alone = 'a' // no client needs it, nor its supervisor
)

// supervisor has at most one worker in each role. Others end.
type supervisor struct {
	Options
	inherited []*os.File // the files of every worker
	current   *worker    // serves; nil: it has died
	next      *worker    // is not ready yet
	living    map[*worker]bool
	started   time.Time // when the last worker was
	open      bool
	events    chan event
}

// event is a report of a worker, or its end.
type event struct {
	of     *worker
	report byte
	end    string // why it ended; "": it has not
}

type worker struct {
	*exec.Cmd
	orders io.Writer
	state  byte
	timer  *time.Timer // kills it
}

// Run keeps a worker running until ctx ends or a worker reports that it is alone. SIGHUP replaces the worker. Run
// returns an error if the first worker does not become ready.
func Run(ctx context.Context, o Options) error {
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)
	s := &supervisor{Options: o, inherited: o.Sockets, living: map[*worker]bool{}, events: make(chan event, 100)}
	if err := s.addQueues(); err != nil {
		return err
	}
	ticker := time.NewTicker(inspection)
	defer ticker.Stop()
	for {
		s.inspect()
		var replace chan os.Signal // none while a worker is being replaced
		if s.current != nil && len(s.living) == 1 {
			replace = hangups
		}
		select {
		case <-ctx.Done():
			return s.end(nil)
		case <-replace:
			s.Log.Info("SIGHUP: starting the next worker")
			s.start()
		case e := <-s.events:
			if err := s.handle(e); err != nil {
				return s.end(err)
			}
		case <-ticker.C:
		}
	}
}

// addQueues opens a queue for each socket. Messages in it survive the workers.
func (s *supervisor) addQueues() error {
	for range s.Sockets {
		syscall.ForkLock.RLock()
		ends, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_SEQPACKET, 0)
		if err == nil {
			syscall.CloseOnExec(ends[0])
			syscall.CloseOnExec(ends[1])
		}
		syscall.ForkLock.RUnlock()
		if err != nil {
			return os.NewSyscallError("socketpair", err)
		}
		s.inherited = append(s.inherited, os.NewFile(uintptr(ends[0]), "in"), os.NewFile(uintptr(ends[1]), "out"))
	}
	return nil
}

// letAccept ends the wait of the next worker for what the one before it hands over.
func (s *supervisor) letAccept() {
	for i := len(s.Sockets) + 1; i < len(s.inherited); i += 2 {
		_, _ = s.inherited[i].Write(EndOfInstances) // of a queue that is open as long as this process is
	}
}

// inspect starts a worker if there is none, and sends the state to the current one.
func (s *supervisor) inspect() {
	if s.current == nil && s.next == nil && time.Since(s.started) >= startEvery {
		s.start()
	}
	if state := s.State(); s.current != nil && state != s.current.state {
		s.current.state = state
		s.order(s.current, state)
	}
}

func (s *supervisor) start() {
	w := &worker{Cmd: exec.Command(s.Program, s.Args...)}
	s.started, s.next, s.living[w] = time.Now(), w, true
	w.Env, w.Stderr, w.ExtraFiles = append(os.Environ(), variable+"=1"), s.Stderr, s.inherited
	orders, failed := w.StdinPipe()
	reports, err := w.StdoutPipe()
	if err = errors.Join(failed, err, w.Start()); err != nil {
		s.events <- event{of: w, end: err.Error()}
		return
	}
	w.orders = orders
	w.timer = time.AfterFunc(s.StartTime, func() {
		s.Log.Error("a worker takes too long to start or to end: it is killed", "pid", w.Process.Pid)
		_ = w.Process.Kill() // it may have ended
	})
	go func() {
		for reader := bufio.NewReader(reports); ; {
			report, err := reader.ReadByte()
			if err != nil {
				break
			}
			s.events <- event{of: w, report: report}
		}
		_ = w.Wait() // the error is the state
		w.timer.Stop()
		s.events <- event{of: w, end: w.ProcessState.String()}
	}()
}

// errAlone ends the supervisor without being an error.
var errAlone = errors.New("a worker is alone")

// handle follows an event. An error ends the supervisor.
func (s *supervisor) handle(e event) error {
	switch {
	case e.end != "":
		delete(s.living, e.of)
		return s.handleEnd(e)
	case e.report == Ready && e.of == s.next:
		return s.promote()
	case e.report == Alone && e.of == s.current:
		return errAlone
	}
	return nil
}

func (s *supervisor) handleEnd(e event) error {
	switch {
	case e.of != s.current && e.of != s.next:
		if !e.of.ProcessState.Success() { // else it has handed over
			s.Log.Warn("the worker before died: it may not have handed over all", "end", e.end)
			s.letAccept()
		}
	case !s.open:
		return fmt.Errorf("the worker ended before it was ready: %s", e.end)
	case e.of == s.current:
		s.current = nil
		s.Log.Warn("the worker died: another is started", "end", e.end)
	case s.current == nil:
		s.next = nil
		s.Log.Warn("the worker ended before it was ready: another is started", "end", e.end)
	default:
		s.next = nil
		s.Log.Error("the next worker ended before it was ready: the current one stays", "end", e.end)
	}
	return nil
}

// promote makes the next worker the current one.
func (s *supervisor) promote() error {
	if !s.open {
		if err := s.Open(); err != nil {
			return err
		}
	}
	before := s.current
	s.current, s.next, s.open = s.next, nil, true
	s.current.timer.Stop()
	if before == nil {
		s.letAccept()
		return nil
	}
	s.Log.Info("the next worker is ready: the one before hands over", "pid", s.current.Process.Pid,
		"before", before.Process.Pid)
	before.timer.Reset(s.EndTime)
	s.order(before, handOver)
	return nil
}

func (s *supervisor) order(w *worker, order byte) {
	if _, err := w.orders.Write([]byte{order}); err != nil {
		s.Log.Warn("a worker takes no orders", "pid", w.Process.Pid, "error", err) // it has just died
	}
}

// end ends all workers, and returns the cause unless that is errAlone.
func (s *supervisor) end(cause error) error {
	s.Close()
	for w := range s.living {
		signal := syscall.SIGTERM
		if w == s.next { // it serves no one, and may hang
			signal = syscall.SIGKILL
		}
		if w.Process != nil {
			_ = w.Process.Signal(signal) // it may have ended
			w.timer.Reset(s.EndTime)
		}
	}
	for len(s.living) > 0 {
		if e := <-s.events; e.end != "" {
			delete(s.living, e.of)
		}
	}
	if errors.Is(cause, errAlone) {
		return nil
	}
	return cause
}
