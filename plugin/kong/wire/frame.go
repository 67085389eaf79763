package wire

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

const (
	// maxFrame bounds a frame. Large configs fit.
	maxFrame = 64 << 20
	// maxAnswer bounds the answer to one question. Kong's own bounds on a request's headers are far below.
	maxAnswer = 4 << 20
	// bufferSize holds all answers of a usual event.
	bufferSize = 16 << 10
	// keepSize bounds a buffer that is kept between frames.
	keepSize = 256 << 10
)

var (
	errFrameTooLong  = fmt.Errorf("frame is longer than %d bytes", maxFrame)
	errAnswerTooLong = fmt.Errorf("answer is longer than %d bytes", maxAnswer)
)

// frameReader reads frames: a little-endian uint32 length and that many bytes. A read that a deadline interrupts can be
// repeated, and continues where it stopped.
type frameReader struct {
	r        *bufio.Reader
	source   io.Reader // of r
	begun    bool      // the length of the current frame was read
	size     int
	consumed int // bytes of the current frame
	long     []byte
	tooLong  bool // the current frame exceeds the limit
}

func newFrameReader(r io.Reader) frameReader {
	return frameReader{r: bufio.NewReaderSize(r, bufferSize), source: r}
}

// reset drops what was read, and a long buffer.
func (f *frameReader) reset() {
	f.r.Reset(f.source)
	*f = frameReader{r: f.r, source: f.source}
}

// buffered returns how many bytes the next read has without waiting.
func (f *frameReader) buffered() int { return f.r.Buffered() }

// readFrame returns the next frame, which is valid until the next call. It skips a frame longer than limit and
// returns errAnswerTooLong. A frame longer than maxFrame is errFrameTooLong, after which nothing can be read.
func (f *frameReader) readFrame(limit int) ([]byte, error) {
	if err := f.readLength(limit); err != nil {
		return nil, err
	}
	return f.readPayload()
}

// readLength reads the length of the next frame, unless it was read before.
func (f *frameReader) readLength(limit int) error {
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
	f.begun, f.size, f.consumed, f.tooLong = true, int(size), 0, int(size) > limit
	return nil
}

// isIncomplete reports whether a part of the begun frame has not arrived yet.
func (f *frameReader) isIncomplete() bool { return f.r.Buffered() < f.size-f.consumed }

// readPayload reads the frame whose length readLength has read.
func (f *frameReader) readPayload() ([]byte, error) {
	frame, err := f.readBytes()
	if err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	f.begun = false
	if f.tooLong {
		return nil, errAnswerTooLong
	}
	return frame, nil
}

func (f *frameReader) readBytes() ([]byte, error) {
	switch {
	case f.tooLong:
		n, err := f.r.Discard(f.size - f.consumed)
		f.consumed += n
		return nil, err
	case f.size <= f.r.Size():
		frame, err := f.r.Peek(f.size)
		if err != nil {
			return nil, err
		}
		_, err = f.r.Discard(f.size)
		return frame, err
	}
	return f.readLong()
}

// readLong reads a frame that does not fit into the buffer. It grows as bytes arrive, so that a length alone does not
// cost memory.
func (f *frameReader) readLong() ([]byte, error) {
	if f.consumed == 0 {
		f.long = f.long[:0]
	}
	for f.consumed < f.size {
		step := min(f.size-f.consumed, keepSize)
		f.long = append(f.long[:f.consumed], make([]byte, step)...)
		n, err := io.ReadFull(f.r, f.long[f.consumed:])
		f.consumed += n
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

func appendFrame(out, payload []byte) []byte {
	out = binary.LittleEndian.AppendUint32(out, uint32(len(payload)))
	return append(out, payload...)
}

// openFrame appends room for a length. closeFrame writes it once the payload follows.
func openFrame(out []byte) ([]byte, int) {
	out = append(out, 0, 0, 0, 0)
	return out, len(out)
}

func closeFrame(out []byte, start int) {
	binary.LittleEndian.PutUint32(out[start-4:], uint32(len(out)-start))
}
