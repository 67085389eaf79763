package policysync

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// The file of a saved snapshot: a header, one record a row, an end record, and the CRC-32C of all before it. A record
// is its kind (1 byte), the length of the row (uvarint) and the row. Numbers of the header are little-endian.
//
//	 0  magic
//	 8  format, uint32: a reader rejects all but its own
//	12  version, int64
//	20  confirmed, int64: when this version was the newest, in µs since 1970
//	28  rows, uint64: of all tables, without the records of the candidate
//	36  CRC-32C of the header up to here, uint32
const (
	magic        = "RLPOLICY"
	format       = 1 // of the records too: it changes with the fields of a row or their order
	fileHeader   = 40
	maxRecord    = 128 << 10 // bytes of a row: more than all its texts at their longest
	bufferLength = 256 << 10
)

var (
	castagnoli = crc32.MakeTable(crc32.Castagnoli)

	errShort  = errors.New("it is cut short")
	errDamage = errors.New("it is damaged: its checksum is wrong")
)

// Saved holds the content of the file of a saved snapshot.
type Saved struct {
	Rows      policy.Rows
	Candidate *policy.CandidateSet // the open one; nil: none was
	Confirmed time.Time            // when these rows were last the newest, by the clock of the node that wrote them
}

// ReadFile reads the file of a saved snapshot of at most maxRows rows (0: DefaultMaxRows). It returns an error for a
// file that is cut short, damaged, too large or of another format.
func ReadFile(path string, maxRows int) (Saved, error) {
	if maxRows <= 0 {
		maxRows = DefaultMaxRows
	}
	file, err := os.Open(path)
	if err != nil {
		return Saved{}, fmt.Errorf("read saved policies: %w", err)
	}
	defer file.Close()
	saved, err := decode(file, maxRows)
	if err != nil {
		return Saved{}, fmt.Errorf("read saved policies: %s: %w", path, err)
	}
	return saved, nil
}

// encode writes a snapshot.
func encode(to io.Writer, snapshot *policy.Snapshot, confirmed time.Time) error {
	sum := crc32.New(castagnoli)
	out := bufio.NewWriterSize(io.MultiWriter(to, sum), bufferLength)
	header := make([]byte, 0, fileHeader)
	header = append(header, magic...)
	header = binary.LittleEndian.AppendUint32(header, format)
	header = binary.LittleEndian.AppendUint64(header, uint64(snapshot.Version()))
	header = binary.LittleEndian.AppendUint64(header, uint64(confirmed.UnixMicro()))
	tiers := snapshot.Tiers()
	header = binary.LittleEndian.AppendUint64(header, uint64(snapshot.Len()+len(tiers)))
	header = binary.LittleEndian.AppendUint32(header, crc32.Checksum(header, castagnoli))
	if _, err := out.Write(header); err != nil {
		return err
	}
	w := recordWriter{to: out}
	for i := range tiers {
		w.write(recordTier, func(c *codec) { c.tier(&tiers[i]) })
	}
	for r := range snapshot.Tenants() {
		w.write(recordTenant, func(c *codec) { c.tenant(&r) })
	}
	for r := range snapshot.Policies() {
		w.write(recordPolicy, func(c *codec) { c.policy(&r) })
	}
	for o := range snapshot.Overrides() {
		w.write(recordOverride, func(c *codec) { c.override(&o) })
	}
	for _, r := range snapshot.Costs() {
		w.write(recordCost, func(c *codec) { c.cost(&r) })
	}
	w.writeCandidate(snapshot.CandidateSet())
	w.write(recordEnd, func(*codec) {})
	if w.err == nil {
		w.err = out.Flush()
	}
	if w.err != nil {
		return w.err
	}
	_, err := to.Write(binary.LittleEndian.AppendUint32(nil, sum.Sum32()))
	return err
}

// recordWriter writes records until one fails.
type recordWriter struct {
	to    *bufio.Writer
	codec codec
	head  []byte
	err   error
}

func (w *recordWriter) write(kind byte, row func(*codec)) {
	if w.err != nil {
		return
	}
	w.codec.buf = w.codec.buf[:0]
	row(&w.codec)
	if len(w.codec.buf) > maxRecord {
		w.err = fmt.Errorf("a row takes %d bytes, more than %d", len(w.codec.buf), maxRecord)
		return
	}
	w.head = binary.AppendUvarint(append(w.head[:0], kind), uint64(len(w.codec.buf)))
	if _, w.err = w.to.Write(w.head); w.err == nil {
		_, w.err = w.to.Write(w.codec.buf)
	}
}

// decode reads what encode has written. It checks the number of rows first.
func decode(from io.Reader, maxRows int) (Saved, error) {
	sum := &checksumReader{from: bufio.NewReaderSize(from, bufferLength)}
	saved, rows, err := decodeHeader(sum)
	if err != nil {
		return Saved{}, err
	}
	if rows > uint64(maxRows) {
		return Saved{}, fmt.Errorf("it has %d rows, more than snapshot_max_rows (%d)", rows, maxRows)
	}
	if err := decodeRows(sum, &saved, rows); err != nil {
		return Saved{}, err
	}
	want := sum.sum
	trailer, err := sum.next(4)
	switch {
	case err != nil:
		return Saved{}, err
	case binary.LittleEndian.Uint32(trailer) != want:
		return Saved{}, errDamage
	}
	if _, err := sum.from.ReadByte(); !errors.Is(err, io.EOF) {
		return Saved{}, errors.New("bytes follow its end")
	}
	return saved, nil
}

// decodeHeader reads the header, and returns the number of rows.
func decodeHeader(sum *checksumReader) (saved Saved, rows uint64, err error) {
	start, err := sum.next(len(magic) + 4)
	if err != nil {
		return saved, 0, err
	}
	if string(start[:len(magic)]) != magic {
		return saved, 0, errors.New("it is not a file of saved policies")
	}
	if found := binary.LittleEndian.Uint32(start[len(magic):]); found != format {
		return saved, 0, fmt.Errorf("it has format %d; this program reads format %d", found, format)
	}
	numbers, err := sum.next(24)
	if err != nil {
		return saved, 0, err
	}
	saved.Rows.Version = int64(binary.LittleEndian.Uint64(numbers))
	saved.Confirmed = time.UnixMicro(int64(binary.LittleEndian.Uint64(numbers[8:])))
	rows = binary.LittleEndian.Uint64(numbers[16:])
	want := sum.sum
	check, err := sum.next(4)
	if err == nil && binary.LittleEndian.Uint32(check) != want {
		err = errDamage
	}
	return saved, rows, err
}

// decodeRows reads the records up to the end record.
func decodeRows(sum *checksumReader, saved *Saved, count uint64) error {
	c := codec{reading: true, texts: internedTexts{}}
	for n := uint64(0); ; {
		kind, row, err := sum.nextRecord()
		switch {
		case err != nil:
			return err
		case kind == recordEnd && n == count && len(row) == 0:
			return nil
		case kind == recordEnd || n == count && isRow(kind):
			return errDamage
		case isRow(kind):
			n++
		}
		c.buf = row
		if !c.readRecord(kind, saved) || c.finish() != nil {
			return errDamage
		}
	}
}

// checksumReader reads bytes and keeps their checksum.
type checksumReader struct {
	from *bufio.Reader
	sum  uint32
}

// next returns the next n bytes, at most maxRecord. They are valid until the next call.
func (s *checksumReader) next(n int) ([]byte, error) {
	data, err := s.from.Peek(n)
	if errors.Is(err, io.EOF) {
		return nil, errShort
	}
	if err != nil {
		return nil, err
	}
	s.sum = crc32.Update(s.sum, castagnoli, data)
	_, err = s.from.Discard(n)
	return data, err
}

// nextRecord returns the next record.
func (s *checksumReader) nextRecord() (kind byte, row []byte, err error) {
	head, err := s.next(1)
	if err != nil {
		return 0, nil, err
	}
	kind = head[0]
	length, err := binary.ReadUvarint(s)
	switch {
	case errors.Is(err, errShort):
		return 0, nil, err
	case err != nil || length > maxRecord:
		return 0, nil, errDamage
	}
	row, err = s.next(int(length))
	return kind, row, err
}

// ReadByte implements io.ByteReader.
func (s *checksumReader) ReadByte() (byte, error) {
	data, err := s.next(1)
	if err != nil {
		return 0, err
	}
	return data[0], nil
}
