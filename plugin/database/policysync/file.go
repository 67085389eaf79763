package policysync

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
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

const (
	// saveShare is the least ratio of the pause after a save to the save.
	saveShare = 20
	// resaveAfter is the age at which a saved snapshot of the newest version is saved again: the file records when the
	// version was last confirmed.
	resaveAfter = 10 * time.Minute
	// staleAfter is the age at which an incomplete file is removed: its process was killed.
	staleAfter = time.Hour
)

// loadSaved puts the saved snapshot in force, if it exists and can be read.
func (s *Sync) loadSaved() {
	s.removeLeftovers()
	saved, err := ReadFile(s.path(), s.options.MaxRows)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err != nil {
		s.log.Warn("reading the saved policies failed: only the config applies until Postgres answers", "error", err)
		return
	}
	snapshot, found := policy.NewSnapshot(saved.Rows, nil)
	fresh := s.faults.replace(found, nil, nil)
	s.candidate = saved.Candidate
	s.swap(s.withCandidate(snapshot), FromDisk, saved.Confirmed, func(*state) {})
	s.log.Info("the saved policies are in force until Postgres answers",
		"version", snapshot.Version(), "rows", snapshot.Len(), "age_seconds", time.Since(saved.Confirmed).Seconds())
	s.logFaults(fresh, snapshot.Version())
}

// removeLeftovers removes incomplete files of processes that were killed while they saved.
func (s *Sync) removeLeftovers() {
	found, err := filepath.Glob(s.path() + ".*")
	for _, path := range found {
		var info fs.FileInfo
		if info, err = os.Stat(path); err == nil && time.Since(info.ModTime()) > staleAfter {
			err = os.Remove(path)
		}
		if err != nil {
			break
		}
	}
	if err != nil {
		s.log.Debug("removing an incomplete file failed", "error", err)
	}
}

// saveUntil saves new snapshots until ctx ends: the first at once, and only the last of those that follow quickly.
func (s *Sync) saveUntil(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.unsaved:
		}
		s.save(false)
		select {
		case <-ctx.Done():
		case <-time.After(max(s.options.SaveEvery, saveShare*s.saveTime)):
		}
	}
}

// save saves the snapshot, unless it was saved or is itself from the file. A snapshot of the saved version is saved
// again only if last is set, or after resaveAfter.
func (s *Sync) save(last bool) {
	s.mu.Lock()
	source, confirmed := s.state.Source, s.state.confirmed
	s.mu.Unlock()
	snapshot := s.Snapshot()
	if s.options.Dir == "" || source != FromPostgres || snapshot == s.saved {
		return
	}
	began := time.Now()
	if !last && s.saved != nil && s.saved.Version() == snapshot.Version() && began.Sub(s.savedAt) < resaveAfter {
		return
	}
	err := writeFile(s.path(), snapshot, confirmed)
	s.saved, s.savedAt, s.saveTime = snapshot, began, time.Since(began)
	if err != nil {
		s.log.Warn("saving the policies failed: a start without Postgres would use older ones, or none", "error", err)
		s.updateState(func(state *state) { state.Unsaved++ })
		return
	}
	s.updateState(func(state *state) { state.Saves++ })
}

// writeFile replaces the saved snapshot atomically: whatever happens, the file is the old or the new one. Only this
// user can read it.
func writeFile(path string, snapshot *policy.Snapshot, confirmed time.Time) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("save policies: %w", err)
		}
	}()
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	file, err := os.CreateTemp(dir, filepath.Base(path)+".*") // readable by this user only
	if err != nil {
		return err
	}
	err = encode(file, snapshot, confirmed)
	if err == nil {
		err = file.Sync()
	}
	err = errors.Join(err, file.Close())
	if err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(file.Name()))
	}
	return syncFolder(dir)
}

// syncFolder syncs a folder, so that the file's new name survives a loss of power.
func syncFolder(dir string) error {
	folder, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}
