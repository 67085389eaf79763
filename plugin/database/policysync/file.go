package policysync

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// The file of a saved snapshot: its magic, its format (uint32: a reader rejects all but its own), a savedHeader and a
// savedRow for each row as JSON, and the CRC-32C of all before it (uint32). Both numbers are little-endian.
const (
	magic        = "RLPOLICY"
	format       = 2
	fileStart    = len(magic) + 4
	sumBytes     = 4
	bufferLength = 256 << 10
)

var (
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
	errDamage  = errors.New("it is cut short or damaged: its checksum is wrong")
)

// Saved holds the content of the file of a saved snapshot.
type Saved struct {
	Rows      policy.Rows
	Candidate *policy.CandidateSet // the open one; nil: none was
	Confirmed time.Time            // when these rows were last the newest, by the clock of the node that wrote them
}

type savedHeader struct {
	Version   int64
	Confirmed time.Time
	Rows      int                  // of all tables
	Candidate *policy.CandidateSet // with it a node decides as the nodes do that have lost Postgres meanwhile
}

// savedRow has one of the fields.
type savedRow struct {
	Tier     *policy.TierRow   `json:",omitempty"`
	Tenant   *schema.Tenant    `json:",omitempty"`
	Policy   *policy.PolicyRow `json:",omitempty"`
	Override *savedOverride    `json:",omitempty"`
	Cost     *policy.CostRow   `json:",omitempty"`
}

// savedOverride is an override with its instants in microseconds, because JSON has none after the year 9999. One of a
// snapshot is permanent if it has no end.
type savedOverride struct {
	ID int64
	schema.Override
	StartsAt  limit.Micros `json:"starts_at,omitempty"`
	ExpiresAt limit.Micros `json:"expires_at,omitempty"`
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
	info, err := file.Stat()
	if err != nil {
		return Saved{}, fmt.Errorf("read saved policies: %w", err)
	}
	saved, err := decode(file, info.Size(), maxRows)
	if err != nil {
		return Saved{}, fmt.Errorf("read saved policies: %s: %w", path, err)
	}
	return saved, nil
}

// encode writes a snapshot.
func encode(to io.Writer, snapshot *policy.Snapshot, confirmed time.Time) error {
	sum := crc32.New(castagnoli)
	out := bufio.NewWriterSize(io.MultiWriter(to, sum), bufferLength)
	_, err := out.Write(binary.LittleEndian.AppendUint32([]byte(magic), format))
	encoder := json.NewEncoder(out)
	encoder.SetEscapeHTML(false)
	write := func(value any) {
		if err == nil {
			err = encoder.Encode(value)
		}
	}
	tiers := snapshot.Tiers()
	write(savedHeader{snapshot.Version(), confirmed, snapshot.Len() + len(tiers), snapshot.CandidateSet()})
	for _, r := range tiers {
		write(savedRow{Tier: &r})
	}
	for r := range snapshot.Tenants() {
		write(savedRow{Tenant: &r})
	}
	for r := range snapshot.Policies() {
		write(savedRow{Policy: &r})
	}
	for o := range snapshot.Overrides() {
		write(savedRow{Override: &savedOverride{o.ID, o.Override, micros(o.StartsAt), micros(o.ExpiresAt)}})
	}
	for _, r := range snapshot.Costs() {
		write(savedRow{Cost: &r})
	}
	if err == nil {
		err = out.Flush()
	}
	if err == nil {
		_, err = to.Write(binary.LittleEndian.AppendUint32(nil, sum.Sum32()))
	}
	return err
}

// decode reads what encode has written, after a check of its sum.
func decode(from io.ReaderAt, size int64, maxRows int) (Saved, error) {
	start, end := make([]byte, fileStart), make([]byte, sumBytes)
	if _, err := from.ReadAt(start, 0); err != nil {
		return Saved{}, errDamage
	}
	if string(start[:len(magic)]) != magic {
		return Saved{}, errors.New("it is not a file of saved policies")
	}
	if found := binary.LittleEndian.Uint32(start[len(magic):]); found != format {
		return Saved{}, fmt.Errorf("it has format %d; this program reads format %d", found, format)
	}
	sum := crc32.New(castagnoli)
	_, err := io.Copy(sum, io.NewSectionReader(from, 0, size-sumBytes))
	if err == nil {
		_, err = from.ReadAt(end, size-sumBytes)
	}
	if err != nil || binary.LittleEndian.Uint32(end) != sum.Sum32() {
		return Saved{}, errors.Join(errDamage, err)
	}
	return decodeRows(io.NewSectionReader(from, int64(fileStart), size-sumBytes-int64(fileStart)), maxRows)
}

// decodeRows reads the header and the rows. It checks the number of rows first.
func decodeRows(from io.Reader, maxRows int) (Saved, error) {
	decoder := json.NewDecoder(from)
	var h savedHeader
	if err := decoder.Decode(&h); err != nil {
		return Saved{}, err
	}
	if h.Rows > maxRows {
		return Saved{}, fmt.Errorf("it has %d rows, more than snapshot_max_rows (%d)", h.Rows, maxRows)
	}
	saved := Saved{Rows: policy.Rows{Version: h.Version}, Candidate: h.Candidate, Confirmed: h.Confirmed}
	texts := internedTexts{}
	for {
		var r savedRow
		switch err := decoder.Decode(&r); {
		case errors.Is(err, io.EOF):
			return saved, nil
		case err != nil:
			return Saved{}, err
		}
		r.addTo(&saved.Rows, texts)
	}
}

// addTo adds the row to those of its table.
func (r *savedRow) addTo(rows *policy.Rows, texts internedTexts) {
	switch {
	case r.Tier != nil:
		rows.Tiers = append(rows.Tiers, *r.Tier)
	case r.Tenant != nil:
		r.Tenant.Tier, r.Tenant.TimeZone = texts.intern([]byte(r.Tenant.Tier)), texts.intern([]byte(r.Tenant.TimeZone))
		rows.Tenants = append(rows.Tenants, *r.Tenant)
	case r.Policy != nil:
		internFields(texts, policyFields, &r.Policy.Policy)
		rows.Policies = append(rows.Policies, *r.Policy)
	case r.Override != nil:
		o := policy.Override{ID: r.Override.ID, Override: r.Override.Override}
		o.StartsAt, o.ExpiresAt = timeOf(r.Override.StartsAt), timeOf(r.Override.ExpiresAt)
		o.Permanent = o.ExpiresAt.IsZero()
		internFields(texts, overrideFields, &o.Override)
		rows.Overrides = append(rows.Overrides, o)
	case r.Cost != nil:
		rows.Costs = append(rows.Costs, *r.Cost)
	}
}

// internFields keeps one copy of each text that many rows share.
func internFields[T any](texts internedTexts, fields []schema.Field[T], row *T) {
	for i := range fields {
		if text, ok := fields[i].In(row).(*string); ok && !isRare(fields[i].Name) {
			*text = texts.intern([]byte(*text))
		}
	}
}

// micros returns an instant in microseconds, or 0 for none.
func micros(at time.Time) limit.Micros {
	if at.IsZero() {
		return 0
	}
	return limit.Micros(at.UnixMicro())
}

func timeOf(at limit.Micros) time.Time {
	if at == 0 {
		return time.Time{}
	}
	return time.UnixMicro(int64(at)).UTC()
}
