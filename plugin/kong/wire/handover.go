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
// the ids of its instances stay valid. It sends messages through a queue that both processes have. One for each
// instance has the id and the config. Then comes one byte, and then one byte with the file descriptor of each
// connection, once that is between two calls. What gets lost on the way is an instance that is unknown then, or a
// connection that ends: Kong replays the event.

const (
	// adoptTime bounds the wait for the instances of a process that does not send them.
	adoptTime = 2 * time.Second
	// maxMessage is more than the kernel takes for a message by default.
	maxMessage = 256 << 10
)

// handover is the queue of a server.
type handover struct {
	in, out *net.UnixConn  // nil: there is none
	to      bool           // Serve is to hand over at its end
	serve   func(net.Conn) // serves a connection, once serving is closed
	serving chan struct{}
	reading sync.WaitGroup
}

// Adopt starts the instances that another process hands over through a queue. It returns when they are complete, and
// that process accepts no connections any more. Serve, which must be called next, adopts the connections, and does not
// shut down its listening socket, which other processes have too.
func (s *Server) Adopt(in, out *net.UnixConn) {
	s.handover.in, s.handover.out = in, out
	complete := make(chan struct{})
	s.handover.reading.Go(func() { s.readQueue(sync.OnceFunc(func() { close(complete) })) })
	select {
	case <-complete:
	case <-time.After(adoptTime):
		s.log.Warn("the process before has not handed over: Kong starts its instances anew", "after", adoptTime)
	}
}

// HandOver makes Serve hand over through the queue when its context ends.
func (s *Server) HandOver() { s.handover.to = true }

// readQueue adopts what comes through the queue until stopReading. complete is called after the instances.
func (s *Server) readQueue(complete func()) {
	message, rights := make([]byte, maxMessage), make([]byte, syscall.CmsgSpace(4))
	for {
		n, has, _, _, err := s.handover.in.ReadMsgUnix(message, rights)
		switch {
		case err != nil:
			return
		case n == maxMessage: // it is cut off
		case n >= 4:
			config := parseConfig(message[4:n])
			config.id = int32(binary.LittleEndian.Uint32(message))
			s.instances.add(config, s.start(config))
		case has == 0:
			complete()
		default:
			c, err := receivedConn(rights[:has])
			if err != nil {
				s.log.Warn("a connection of the process before is lost", "error", err)
				continue
			}
			s.handover.reading.Go(func() { // one of an earlier handover comes before the instances
				<-s.handover.serving
				s.handover.serve(c)
			})
		}
	}
}

// receivedConn returns the connection whose file descriptor came with a message.
func receivedConn(rights []byte) (net.Conn, error) {
	parts, err := syscall.ParseSocketControlMessage(rights)
	if err != nil {
		return nil, err
	}
	fds, err := syscall.ParseUnixRights(&parts[0])
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fds[0]), "connection")
	defer file.Close()
	return net.FileConn(file)
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

// sendInstances sends all instances. One whose config is too long is left out.
func (s *Server) sendInstances() {
	out := s.handover.out
	failed := out.SetWriteDeadline(time.Now().Add(s.drain))
	for _, in := range s.instances.all() {
		message := append(binary.LittleEndian.AppendUint32(nil, uint32(in.id)), in.common.Value()...)
		if _, err := out.Write(message); err != nil {
			failed = err
		}
	}
	if _, err := out.Write([]byte{0}); errors.Join(failed, err) != nil {
		s.log.Warn("not all instances were handed over: Kong starts the others anew", "error", errors.Join(failed, err))
	}
}

// handOver sends a connection, and reports whether it could.
func (s *Server) handOver(c *socket) bool {
	if !s.handover.to || c.raw == nil {
		return false
	}
	failed := io.ErrClosedPipe
	err := c.raw.Control(func(fd uintptr) {
		_, _, failed = s.handover.out.WriteMsgUnix([]byte{0}, syscall.UnixRights(int(fd)), nil)
	})
	return err == nil && failed == nil
}
