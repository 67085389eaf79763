package policysync

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
)

// What a binary COPY stream is made of: docs of Postgres, COPY, "Binary Format". Numbers are big-endian.
const (
	signature    = "PGCOPY\n\xff\r\n\x00"
	headerLength = len(signature) + 4 + 4 // flags, and the length of an extension
	criticalBits = 0xffff_0000            // flags that a reader must know; we know none
	null         = -1                     // the length of an absent field
	trailer      = -1                     // the number of fields of what ends the stream
)

// maxTuple bounds one row of the stream, in bytes. Constraints keep rows below 5 kB.
const maxTuple = 64 << 20

// tuples reads a binary COPY stream while it is written to it, in pieces of any size.
type tuples struct {
	columns int
	row     func(fields [][]byte) error // nil: NULL. The fields are valid until it returns

	rest   []byte // what came of a row that is not complete
	fields [][]byte
	opened bool // the header has been read
	ended  bool // the trailer has been read
	bytes  int64
}

// Write implements io.Writer. An error means that the stream is not what it should be, or is row's.
func (t *tuples) Write(piece []byte) (int, error) {
	t.bytes += int64(len(piece))
	data := piece
	if len(t.rest) > 0 {
		t.rest = append(t.rest, piece...)
		data = t.rest
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
	t.rest = append(t.rest[:0], data...)
	return len(piece), nil
}

// end tells whether the stream was whole.
func (t *tuples) end() error {
	if !t.ended {
		return errors.New("read the copy of a table: it ends early")
	}
	return nil
}

// next takes the header, a row or the trailer from the front of data. It takes nothing if that is not complete.
func (t *tuples) next(data []byte) (int, error) {
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

func (t *tuples) header(data []byte) (int, error) {
	if known := min(len(data), len(signature)); !bytes.Equal(data[:known], []byte(signature[:known])) {
		return 0, errors.New("it is not in Postgres's binary format")
	}
	if len(data) < headerLength {
		return 0, nil
	}
	if flags := binary.BigEndian.Uint32(data[len(signature):]); flags&criticalBits != 0 {
		return 0, fmt.Errorf("its flags %#x are not known", flags)
	}
	extension := binary.BigEndian.Uint32(data[len(signature)+4:])
	if extension > maxTuple {
		return 0, fmt.Errorf("its header has %d bytes more", extension)
	}
	if uint32(len(data)-headerLength) < extension {
		return 0, nil
	}
	t.opened = true
	return headerLength + int(extension), nil
}

// split finds the fields of a row, and how many bytes they take: 0 if they are not all there.
func (t *tuples) split(data []byte) (int, error) {
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
