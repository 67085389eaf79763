package policysync

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
)

// Parts of a binary COPY stream (Postgres documentation, COPY, "Binary Format"). Numbers are big-endian.
const (
	signature    = "PGCOPY\n\xff\r\n\x00"
	headerLength = len(signature) + 4 + 4 // flags, and the length of an extension
	criticalBits = 0xffff_0000            // flags that a reader must support; this one supports none
	null         = -1                     // length of an absent field
	trailer      = -1                     // number of fields of the trailer
)

// maxTuple bounds one row of the stream, in bytes. Constraints keep rows below 5 kB.
const maxTuple = 64 << 20

// copyReader parses a binary COPY stream that is written to it, in pieces of any size.
type copyReader struct {
	columns int
	row     func(fields [][]byte) error // nil: NULL. The fields are valid until it returns

	partial []byte // the received part of an incomplete row
	fields  [][]byte
	opened  bool // the header has been read
	ended   bool // the trailer has been read
	bytes   int64
}

// Write implements io.Writer. It returns an error if the stream is malformed, or if row returns one.
func (t *copyReader) Write(piece []byte) (int, error) {
	t.bytes += int64(len(piece))
	data := piece
	if len(t.partial) > 0 {
		t.partial = append(t.partial, piece...)
		data = t.partial
	}
	for len(data) > 0 {
		n, err := t.next(data)
		if err != nil {
			return 0, fmt.Errorf("read the copy of a table: %w", err)
		}
		if n == 0 {
			break
		}
		data = data[n:]
	}
	if len(data) > maxTuple {
		return 0, fmt.Errorf("read the copy of a table: a row has more than %d bytes", maxTuple)
	}
	t.partial = append(t.partial[:0], data...)
	return len(piece), nil
}

// checkEnd returns an error if the stream was incomplete.
func (t *copyReader) checkEnd() error {
	if !t.ended {
		return errors.New("read the copy of a table: it ends early")
	}
	return nil
}

// next parses the header, a row or the trailer at the front of data and returns its length. It returns 0 if that is
// incomplete.
func (t *copyReader) next(data []byte) (int, error) {
	switch {
	case t.ended:
		return 0, fmt.Errorf("%d bytes follow its end", len(data))
	case !t.opened:
		return t.header(data)
	case len(data) < 2:
		return 0, nil
	}
	count := int(int16(binary.BigEndian.Uint16(data)))
	if count == trailer {
		t.ended = true
		return 2, nil
	}
	if count != t.columns {
		return 0, fmt.Errorf("a row has %d fields, want %d", count, t.columns)
	}
	n, err := t.split(data[2:])
	if n == 0 || err != nil {
		return 0, err
	}
	return 2 + n, t.row(t.fields)
}

func (t *copyReader) header(data []byte) (int, error) {
	if n := min(len(data), len(signature)); !bytes.Equal(data[:n], []byte(signature[:n])) {
		return 0, errors.New("it is not in Postgres's binary format")
	}
	if len(data) < headerLength {
		return 0, nil
	}
	if flags := binary.BigEndian.Uint32(data[len(signature):]); flags&criticalBits != 0 {
		return 0, fmt.Errorf("its flags %#x are not supported", flags)
	}
	extension := binary.BigEndian.Uint32(data[len(signature)+4:])
	if extension > maxTuple {
		return 0, fmt.Errorf("its header has an extension of %d bytes", extension)
	}
	if uint32(len(data)-headerLength) < extension {
		return 0, nil
	}
	t.opened = true
	return headerLength + int(extension), nil
}

// split finds the fields of a row and returns their length in bytes, or 0 if they are incomplete.
func (t *copyReader) split(data []byte) (int, error) {
	t.fields = t.fields[:0]
	at := 0
	for range t.columns {
		if len(data)-at < 4 {
			return 0, nil
		}
		length := int(int32(binary.BigEndian.Uint32(data[at:])))
		at += 4
		switch {
		case length == null:
			t.fields = append(t.fields, nil)
			continue
		case length < 0 || length > maxTuple:
			return 0, fmt.Errorf("a field has %d bytes", length)
		case len(data)-at < length:
			return 0, nil
		}
		t.fields = append(t.fields, data[at:at+length:at+length])
		at += length
	}
	return at, nil
}
