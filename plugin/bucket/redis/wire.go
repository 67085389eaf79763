package redis

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// maxQueued bounds the calls that a server has not replied to; one more is not sent.
	maxQueued = 16384
	// maxMerged bounds the requests of a command. More of them save little, and Redis does nothing else meanwhile.
	maxMerged = 16
	// maxMergedSize bounds the bytes of their arguments. One has about 200, and 18,000 at most.
	maxMergedSize = 8 << 10
	// maxTurns bounds how often a caller writes those that come while it writes.
	maxTurns = 3
	// wireBuffer is the size of a wire's buffers, which grow to twice that and for larger replies.
	wireBuffer = 64 << 10
	// slowWrite is the time after which a caller that has written leaves further writing to a goroutine.
	slowWrite = 10 * time.Millisecond
)

var (
	errQueueFull = errors.New("too many calls wait for the server")
	errEnded     = errors.New("the wire has ended")
	errUnwanted  = errors.New("a reply came that no call waits for")
)

// wire is a connection that all calls to a server share. A call is written as soon as the one before it is written, and
// those that come meanwhile are written together, and merged into one command where their script takes several. Replies
// come in the same order.
//
// A call that is abandoned before it is written is never written.
type wire struct {
	timeout      time.Duration // how long a server that has calls may not reply
	writeTimeout time.Duration
	retiring     func(*wire) // is called when no more calls are taken
	cancel       func()      // ends the opening

	mu        sync.Mutex
	conn      net.Conn // nil: not open yet
	calls     []*call  // without a reply, in the order in which they are written
	written   int      // how many of them are written
	writing   bool
	abandoned int       // calls in the queue that are never written
	spare     []byte    // for the next write
	active    time.Time // when the last reply was whole, or the first call since none was left
	retired   bool      // takes no more calls
	err       error     // why it is closed

	finished []*call // of the reader
}

// run sends c and waits for its reply.
func (w *wire) run(ctx context.Context, c *call) error {
	if err := w.add(c); err != nil {
		return err
	}
	select {
	case <-c.answered:
		return c.err
	case <-ctx.Done():
	case <-callerContext(ctx).Done():
	}
	select {
	case <-c.answered: // at the last moment
		return c.err
	default:
		return w.abandon(c, ctx.Err())
	}
}

// add queues a call, and writes it unless that is done already.
func (w *wire) add(c *call) error {
	w.mu.Lock()
	if w.retired || len(w.calls) >= maxQueued {
		defer w.mu.Unlock()
		if w.retired {
			return errEnded
		}
		return &Error{Kind: NotSent, err: errQueueFull}
	}
	if len(w.calls) == 0 {
		w.active = time.Now()
	}
	w.calls = append(w.calls, c)
	writes, shared := w.conn != nil && !w.writing, len(w.calls) > 1
	w.writing = w.writing || writes
	w.mu.Unlock()
	if !writes {
		return nil
	}
	if shared {
		runtime.Gosched() // other callers have just got their replies too
	}
	w.write()
	return nil
}

// write writes the calls that are not written. After some turns it leaves those that have come meanwhile to the next
// call, or to the next reply, which is on its way. After a slow one it leaves them to a goroutine, so that its caller
// is held up once at most. The caller has set writing.
func (w *wire) write() {
	for turn := 1; ; turn++ {
		buffer, began := w.encode(), time.Now()
		err := w.conn.SetWriteDeadline(began.Add(w.writeTimeout))
		if err == nil && len(buffer) > 0 {
			_, err = w.conn.Write(buffer)
		}
		if err != nil {
			w.end(err)
		}
		w.mu.Lock()
		if w.spare = buffer; cap(buffer) > 2*wireBuffer {
			w.spare = nil
		}
		left := len(w.calls) - w.written
		w.writing = left > 0 && (turn < maxTurns || w.written == 0)
		again := w.writing
		w.mu.Unlock()
		if !again {
			return
		}
		if time.Since(began) > slowWrite {
			go w.write() // ends with the connection at the latest
			return
		}
	}
}

// encode returns the commands of the calls that are not written, and counts them as written.
func (w *wire) encode() []byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	buffer := w.spare[:0]
	w.dropAbandoned()
	for w.written < len(w.calls) {
		together := merge(w.calls[w.written:])
		for _, c := range together {
			c.sent, c.inCommand = true, len(together)
		}
		buffer = appendCommand(buffer, together)
		w.written += len(together)
	}
	return buffer
}

// merge returns the first of calls and those behind it that one command can run with it.
func merge(calls []*call) []*call {
	first := calls[0]
	if !first.script.merges || first.apart {
		return calls[:1]
	}
	size := len(first.args[0])
	for n, c := range calls[1:min(len(calls), maxMerged)] {
		if c.script != first.script || c.apart || size+len(c.args[0]) > maxMergedSize {
			return calls[:n+1]
		}
		size += len(c.args[0])
	}
	return calls[:min(len(calls), maxMerged)]
}

// abandon ends a call whose caller has no more time, and the wire too if its server has not replied for that long.
func (w *wire) abandon(c *call, cause error) error {
	w.mu.Lock()
	err := cause
	if !c.sent {
		err, c.abandoned = notSent(cause), true
		if w.abandoned++; 2*w.abandoned > len(w.calls)-w.written {
			w.dropAbandoned()
		}
	}
	silent := w.conn != nil && w.written > 0 && time.Since(w.active) > w.timeout*7/8
	w.mu.Unlock()
	if silent {
		w.end(fmt.Errorf("the server has not replied for %v: %w", w.timeout, os.ErrDeadlineExceeded))
	}
	return err
}

// dropAbandoned removes the abandoned calls from the queue. The caller holds w.mu.
func (w *wire) dropAbandoned() {
	left := slices.DeleteFunc(w.calls[w.written:], func(c *call) bool { return c.abandoned })
	w.calls, w.abandoned = w.calls[:w.written+len(left)], 0
}

// open begins to write the calls, and reads the replies until the wire ends.
func (w *wire) open(conn net.Conn) {
	w.mu.Lock()
	if w.err != nil {
		w.mu.Unlock()
		return
	}
	w.conn, w.writing = conn, true
	w.active = time.Now()
	w.mu.Unlock()
	w.write()
	w.end(w.read(conn))
}

// read reads replies until the connection ends, or the wire is retired and has no more calls.
func (w *wire) read(conn net.Conn) error {
	buffer, filled := make([]byte, wireBuffer), 0
	for !w.isDone() {
		if filled == len(buffer) {
			if filled > maxReply {
				return errLongReply
			}
			buffer = append(buffer, make([]byte, len(buffer))...)
		}
		n, err := conn.Read(buffer[filled:])
		if err != nil {
			return err
		}
		filled += n
		used, err := w.answer(buffer[:filled])
		if err != nil {
			return err
		}
		filled = copy(buffer, buffer[used:filled])
	}
	return io.EOF
}

// isDone reports whether the wire is retired and has no more calls.
func (w *wire) isDone() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.retired && len(w.calls) == 0
}

// answer hands the replies in b to their calls, and returns their length. It may write calls too: Redis reads commands
// while its replies wait.
func (w *wire) answer(b []byte) (used int, err error) {
	w.mu.Lock()
	finished := w.finished[:0]
	for {
		var n int
		if n, err = replyLength(b[used:]); n == 0 {
			break
		}
		if len(finished) >= w.written {
			err = errUnwanted
			break
		}
		together := w.calls[len(finished):][:w.calls[len(finished)].inCommand]
		if err = setReplies(together, b[used:used+n]); err != nil {
			break
		}
		finished, used = append(finished, together...), used+n
	}
	left := copy(w.calls, w.calls[len(finished):])
	clear(w.calls[left:])
	w.calls, w.written = w.calls[:left], w.written-len(finished)
	if len(finished) > 0 {
		w.active = time.Now()
	}
	writes := !w.writing && w.written < left
	w.writing = w.writing || writes
	w.mu.Unlock()
	for _, c := range finished {
		if c.err != nil && strings.HasPrefix(c.err.Error(), "READONLY ") {
			w.retire() // its name may lead to another server by now
		}
		c.answered <- struct{}{}
	}
	clear(finished)
	w.finished = finished
	if writes {
		w.write()
	}
	return used, err
}

// retire ends the wire when its calls have their replies, or the server does not reply. It takes no more calls.
func (w *wire) retire() {
	w.mu.Lock()
	if w.retired {
		w.mu.Unlock()
		return
	}
	w.retired = true
	idle := len(w.calls) == 0
	w.mu.Unlock()
	w.retiring(w)
	if idle {
		w.end(net.ErrClosed)
	} else {
		time.AfterFunc(w.timeout, func() { w.end(net.ErrClosed) })
	}
}

// end closes the wire. Calls without a reply fail: those that are not written are not sent.
func (w *wire) end(err error) {
	w.mu.Lock()
	if w.err != nil {
		w.mu.Unlock()
		return
	}
	w.err, w.retired = err, true
	calls := w.calls
	w.calls, w.written = nil, 0
	conn := w.conn
	w.mu.Unlock()
	w.cancel()
	w.retiring(w)
	if conn != nil {
		_ = conn.Close() // whatever is wrong with it, it is given up
	}
	for _, c := range calls {
		if c.err = err; !c.sent {
			c.err = notSent(err)
		}
		c.answered <- struct{}{}
	}
}
