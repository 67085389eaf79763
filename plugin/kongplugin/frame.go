// Package kongplugin is our side of Kong's plugin-server protocol: it serves the socket that Kong connects to, keeps
// the instances that Kong starts, asks Kong the facts of a request, and answers with what package admit decided.
//
// It is the only importer of the protocol and knows nothing about limits. One connection is one goroutine; its memory
// is reused from event to event, about 30 KiB unless frames are long. All questions of a request leave in one write,
// and so do the headers, the end of the event and the return of the call. How many connections there are is not bounded
// here: the socket is for Kong's workers alone, which have one for each request that they handle at once. An idle one
// may live for ever; a frame that has begun to arrive may not.
//
// Closing the connection during an event means one thing to Kong: the instance is lost. It then resets all instances
// of the plugin and replays the event, at once and again. So a connection is closed only for an unknown instance and
// for a frame that cannot be parsed; every other trouble is read past and answered as on_internal_error says. A
// replayed event is a new request to us and is charged again.
package kongplugin

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"
)

const (
	// maxFrame bounds what is read as one frame: configs can be large, anything larger is not our protocol.
	maxFrame = 64 << 20
	// maxAnswer bounds an answer to one question. Kong's own bounds on a request's headers are far below.
	maxAnswer = 4 << 20
	// bufferSize holds all answers of a usual event; keepSize is the largest buffer kept between frames.
	bufferSize = 16 << 10
	keepSize   = 256 << 10
	// frameTime is how long a frame may take from its length to its last byte, between events. Kong writes it at once,
	// and gives up on anything after 60 s itself: what takes longer will never end.
	frameTime = 60 * time.Second
	// lingerTime is how long a connection that the server ends stays readable, so that a busy worker of Kong can notice.
	lingerTime = 300 * time.Millisecond
	// acceptLast is how long a server that ends accepts the connections that the kernel has made already.
	acceptLast = 20 * time.Millisecond
)

var (
	errFrameTooLong  = fmt.Errorf("frame is longer than %d bytes", maxFrame)
	errHalfFrame     = fmt.Errorf("a frame began and did not end within %v", frameTime)
	errAnswerTooLong = fmt.Errorf("answer is longer than %d bytes", maxAnswer)
)

// frames reads frames: a little-endian uint32 length and that many bytes. A read that a deadline interrupts can be
// taken up again where it stopped.
type frames struct {
	r       *bufio.Reader
	begun   bool // the length of the current frame has been read
	size    int
	got     int // bytes of the current frame consumed so far
	long    []byte
	dropped bool // the current frame is over the limit
}

func newFrames(r io.Reader) frames {
	return frames{r: bufio.NewReaderSize(r, bufferSize)}
}

// buffered is how many bytes the next read has without waiting.
func (f *frames) buffered() int { return f.r.Buffered() }

// read answers the next frame, which is good until the next call. A frame longer than limit is read past and
// answered with errAnswerTooLong; one longer than maxFrame cannot be and is errFrameTooLong.
func (f *frames) read(limit int) ([]byte, error) {
	if err := f.begin(limit); err != nil {
		return nil, err
	}
	return f.rest()
}

// begin reads the length of the next frame, unless that is done. limit is as for read.
func (f *frames) begin(limit int) error {
	if f.begun {
		return nil
	}
	header, err := f.r.Peek(4)
	if err != nil {
		if len(header) > 0 && errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return err
	}
	size := binary.LittleEndian.Uint32(header)
	if size > maxFrame {
		return errFrameTooLong
	}
	if _, err := f.r.Discard(4); err != nil {
		return err
	}
	f.begun, f.size, f.got, f.dropped = true, int(size), 0, int(size) > limit
	return nil
}

// missing tells whether the rest of a frame that has begun has to be waited for.
func (f *frames) missing() bool { return f.r.Buffered() < f.size-f.got }

// rest reads what begin has begun.
func (f *frames) rest() ([]byte, error) {
	frame, err := f.payload()
	if err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	f.begun = false
	if f.dropped {
		return nil, errAnswerTooLong
	}
	return frame, nil
}

func (f *frames) payload() ([]byte, error) {
	switch {
	case f.dropped:
		n, err := f.r.Discard(f.size - f.got)
		f.got += n
		return nil, err
	case f.size <= f.r.Size():
		frame, err := f.r.Peek(f.size)
		if err != nil {
			return nil, err
		}
		_, err = f.r.Discard(f.size)
		return frame, err
	}
	if f.got == 0 {
		f.long = f.long[:0]
	}
	// Grown as bytes arrive, so that a length alone does not cost memory.
	for f.got < f.size {
		step := min(f.size-f.got, keepSize)
		f.long = append(f.long[:f.got], make([]byte, step)...)
		n, err := io.ReadFull(f.r, f.long[f.got:])
		f.got += n
		if err != nil {
			return nil, err
		}
	}
	frame := f.long
	if cap(f.long) > keepSize {
		f.long = nil
	}
	return frame, nil
}

// appendFrame appends one frame to out.
func appendFrame(out, payload []byte) []byte {
	out = binary.LittleEndian.AppendUint32(out, uint32(len(payload)))
	return append(out, payload...)
}

// beginFrame appends room for a length; endFrame fills it in when the payload stands behind it.
func beginFrame(out []byte) ([]byte, int) {
	out = append(out, 0, 0, 0, 0)
	return out, len(out)
}

func endFrame(out []byte, start int) {
	binary.LittleEndian.PutUint32(out[start-4:], uint32(len(out)-start))
}
