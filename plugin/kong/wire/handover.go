package wire

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// A server hands over to the server of another process so that Kong does not notice: its connections stay open, and
// the ids of its instances stay valid. It sends messages through a queue that both processes have. One byte with a file
// descriptor is a connection, once that is between two calls. When no event runs any more, a message for each instance
// has the id and the config. Then comes one byte; or two bytes with the file descriptor of what the process has in
// memory. The other process serves no connection before that. What gets lost on the way is an instance that is unknown
// then, or a connection that ends: Kong replays the event.

const (
	// adoptTime bounds the wait for the instances of a process that does not send them.
	adoptTime = 2 * time.Second
	// quietTime bounds the wait for running events. Those that take longer go on beside the other process.
	quietTime = adoptTime / 2
	// maxMessage is more than the kernel takes for a message by default.
	maxMessage = 256 << 10
)

// The last message of a handover: without a file, and with one.
var endMessage, stateMessage = []byte{0}, []byte{0, 0}

// handover is the queue of a server.
type handover struct {
	in, out *net.UnixConn   // nil: there is none
	state   func() *os.File // not nil: Serve is to hand over at its end
	serve   func(net.Conn)  // serves a connection, once serving is closed
	serving chan struct{}
	reading sync.WaitGroup
}

// Adopt starts the instances that another process hands over through a queue. It returns when they are complete, and
// that process runs no events any more; with the file of what it had in memory, nil if there is none. Serve, which must
// be called next, adopts the connections, and does not shut down its listening socket, which other processes have too.
func (s *Server) Adopt(in, out *net.UnixConn) (state *os.File) {
	s.handover.in, s.handover.out = in, out
	complete := make(chan *os.File, 1)
	s.handover.reading.Go(func() { s.readQueue(complete) })
	select {
	case state = <-complete:
	case <-time.After(adoptTime):
		s.log.Warn("the process before has not handed over: Kong starts its instances anew, and counters start again",
			"after", adoptTime)
		select {
		case complete <- nil: // a state that comes later is closed
		default:
			state = <-complete // it came just now
		}
	}
	return state
}

// HandOver makes Serve hand over through the queue when its context ends. state is called when no event runs any more.
// Its result, unless that is nil, is the file for the Adopt of the other process.
func (s *Server) HandOver(state func() *os.File) { s.handover.state = state }

// readQueue adopts what comes through the queue until stopReading. complete gets the state after the instances, once.
func (s *Server) readQueue(complete chan<- *os.File) {
	message, rights := make([]byte, maxMessage), make([]byte, syscall.CmsgSpace(4))
	for {
		n, has, flags, _, err := s.handover.in.ReadMsgUnix(message, rights)
		switch {
		case err != nil:
			return
		case n == maxMessage: // it is cut off
		case n >= 4:
			config := parseConfig(message[4:n])
			config.id = int32(binary.LittleEndian.Uint32(message))
			s.instances.add(config, s.start(config))
		case n == len(stateMessage):
			finish(complete, s.receivedFile(rights[:has]))
		case has == 0 && flags&syscall.MSG_CTRUNC == 0:
			finish(complete, nil)
		default:
			if file := s.receivedFile(rights[:has]); file != nil {
				s.adoptConn(file)
			}
		}
	}
}

// finish completes the wait of Adopt, unless that is complete or over.
func finish(complete chan<- *os.File, state *os.File) {
	select {
	case complete <- state:
	default:
		_ = state.Close()
	}
}

// adoptConn serves a connection as soon as Serve runs.
func (s *Server) adoptConn(file *os.File) {
	c, err := net.FileConn(file)
	if err = errors.Join(err, file.Close()); err != nil {
		s.log.Warn("a connection of the process before is lost", "error", err)
		return
	}
	s.handover.reading.Go(func() {
		<-s.handover.serving
		s.handover.serve(c)
	})
}

// receivedFile returns the file whose descriptor came with a message; nil: it is lost, which is logged.
func (s *Server) receivedFile(rights []byte) *os.File {
	parts, err := syscall.ParseSocketControlMessage(rights)
	if err == nil && len(parts) == 0 {
		err = syscall.EMFILE // the kernel has dropped it
	}
	var fds []int
	if err == nil {
		fds, err = syscall.ParseUnixRights(&parts[0])
	}
	if err != nil {
		s.log.Warn("a connection of the process before is lost, or its counters", "error", err)
		return nil
	}
	return os.NewFile(uintptr(fds[0]), "handed over")
}

// stopReading leaves the queue to the next process.
func (s *Server) stopReading() error {
	if s.handover.in == nil {
		return nil
	}
	err := s.handover.in.SetReadDeadline(time.Unix(1, 0))
	s.handover.reading.Wait()
	return err
}

// sendAll sends all instances, and then the state. An instance whose config is too long is left out.
func (s *Server) sendAll() {
	out, failed := s.handover.out, error(nil)
	for _, in := range s.instances.all() {
		message := append(binary.LittleEndian.AppendUint32(nil, uint32(in.id)), in.common.Value()...)
		if _, err := out.Write(message); err != nil {
			failed = err
		}
	}
	last, rights := endMessage, []byte(nil)
	if state := s.handover.state(); state != nil {
		defer state.Close()
		last, rights = stateMessage, syscall.UnixRights(int(state.Fd()))
	}
	if _, _, err := out.WriteMsgUnix(last, rights, nil); errors.Join(failed, err) != nil {
		s.log.Warn("not all was handed over: Kong starts the other instances anew", "error", errors.Join(failed, err))
	}
}

// handOver sends a connection, and reports whether it could.
func (s *Server) handOver(c *socket) bool {
	if s.handover.state == nil || c.raw == nil {
		return false
	}
	failed := io.ErrClosedPipe
	err := c.raw.Control(func(fd uintptr) {
		_, _, failed = s.handover.out.WriteMsgUnix([]byte{0}, syscall.UnixRights(int(fd)), nil)
	})
	return err == nil && failed == nil
}
