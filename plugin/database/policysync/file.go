package policysync

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"golang.org/x/sync/errgroup"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// The file of a saved snapshot is JSON in gzip, which finds damage by a checksum: a savedHeader, and a savedRow for
// each row. A reader rejects all formats but its own.
const format = 4

// Saved holds the content of the file of a saved snapshot.
type Saved struct {
	Rows      policy.Rows
	Candidate *policy.CandidateSet // the open one; nil: none was
	Confirmed time.Time            // when these rows were last the newest, by the clock of the node that wrote them
}

type savedHeader struct {
	Format    int
	Version   int64
	Confirmed time.Time
	Rows      int                  // of all tables
	Candidate *policy.CandidateSet // with it a node decides as the nodes do that have lost Postgres meanwhile
}

// savedRow has one of the fields, as readRows has.
type savedRow struct {
	Tier     *policy.TierRow   `json:",omitempty"`
	Tenant   *schema.Tenant    `json:",omitempty"`
	Policy   *policy.PolicyRow `json:",omitempty"`
	Override *policy.Override  `json:",omitempty"`
	Cost     *policy.CostRow   `json:",omitempty"`
	Price    *policy.PriceRow  `json:",omitempty"`
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
	saved, err := decode(file, maxRows, math.MaxInt)
	if err != nil {
		return Saved{}, fmt.Errorf("read saved policies: %s: %w", path, err)
	}
	return saved, nil
}

func encode(to io.Writer, snapshot *policy.Snapshot, confirmed time.Time) error {
	out, err := gzip.NewWriterLevel(to, gzip.BestSpeed)
	encoder := json.NewEncoder(out)
	encoder.SetEscapeHTML(false)
	write := func(value any) {
		if err == nil {
			err = encoder.Encode(value)
		}
	}
	tiers := snapshot.Tiers()
	write(savedHeader{format, snapshot.Version(), confirmed, snapshot.Len() + len(tiers), snapshot.CandidateSet()})
	for _, r := range tiers {
		write(savedRow{Tier: &r})
	}
	for r := range snapshot.Tenants() {
		write(savedRow{Tenant: &r})
	}
	for r := range snapshot.Policies() {
		write(savedRow{Policy: &r})
	}
	for r := range snapshot.Overrides() {
		write(savedRow{Override: &r})
	}
	for _, r := range snapshot.Costs() {
		write(savedRow{Cost: &r})
	}
	for r := range snapshot.Prices() {
		write(savedRow{Price: r})
	}
	return errors.Join(err, out.Close())
}

// decode reads what encode has written, at most maxText bytes of JSON. It checks the number of rows first.
func decode(from io.Reader, maxRows, maxText int) (Saved, error) {
	h, lines, err := decodeHeader(from, maxText)
	if err != nil {
		return Saved{}, err
	}
	if h.Rows > maxRows {
		return Saved{}, fmt.Errorf("it has %d rows, more than snapshot_max_rows (%d)", h.Rows, maxRows)
	}
	parts, err := decodeLines(lines, maxRows)
	if err != nil {
		return Saved{}, fmt.Errorf("it is cut short or damaged: %w", err)
	}
	saved := Saved{Rows: policy.Rows{Version: h.Version}, Candidate: h.Candidate, Confirmed: h.Confirmed}
	saved.Rows.Tiers = concat(parts, func(r *readRows) []policy.TierRow { return r.Tier })
	saved.Rows.Tenants = concat(parts, func(r *readRows) []schema.Tenant { return r.Tenant })
	saved.Rows.Policies = concat(parts, func(r *readRows) []policy.PolicyRow { return r.Policy })
	saved.Rows.Overrides = concat(parts, func(r *readRows) []policy.Override { return r.Override })
	saved.Rows.Costs = concat(parts, func(r *readRows) []policy.CostRow { return r.Cost })
	saved.Rows.Prices = concat(parts, func(r *readRows) []policy.PriceRow { return r.Price })
	return saved, nil
}

// concat returns the rows of one table of all parts.
func concat[R any](parts []*readRows, table func(*readRows) []R) []R {
	lists := make([][]R, len(parts))
	for i, part := range parts {
		lists[i] = table(part)
	}
	return slices.Concat(lists...)
}

// partSize is how many bytes of lines one goroutine decodes, and partRows how many rows these are, about.
const partSize, partRows = 128 << 10, 1000

// errRows is the error of more lines than the header may promise.
var errRows = errors.New("it has more rows than it says, and than snapshot_max_rows")

// decodeLines decodes rows, one a line and at most maxRows, on all cores. The order of the parts is that of the lines.
func decodeLines(from *bufio.Reader, maxRows int) (parts []*readRows, err error) {
	var group errgroup.Group
	group.SetLimit(runtime.GOMAXPROCS(0))
	for err == nil {
		lines := bytes.NewBuffer(make([]byte, 0, partSize+4096))
		_, failed := lines.ReadFrom(io.LimitReader(from, partSize))
		var rest []byte
		rest, err = from.ReadBytes('\n')
		lines.Write(rest)
		rows := bytes.Count(lines.Bytes(), []byte{'\n'})
		if err = cmp.Or(failed, err); rows > maxRows {
			return nil, errors.Join(errRows, group.Wait())
		}
		maxRows -= rows
		part := new(readRows)
		parts = append(parts, part)
		group.Go(func() error { return decodePart(lines, rows, part) })
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return parts, errors.Join(err, group.Wait())
}

// readRows takes a savedRow after the other.
type readRows struct {
	Tier     appended[policy.TierRow]
	Tenant   appended[schema.Tenant]
	Policy   appended[policy.PolicyRow]
	Override appended[policy.Override]
	Cost     appended[policy.CostRow]
	Price    appended[policy.PriceRow]
}

// appended is the rows of one table. Each value that is decoded into it is one more.
type appended[R any] []R

func (a *appended[R]) UnmarshalJSONFrom(from *jsontext.Decoder) error {
	if len(*a) == cap(*a) {
		*a = slices.Grow(*a, partRows)
	}
	*a = append(*a, *new(R))
	return jsonv2.UnmarshalDecode(from, &(*a)[len(*a)-1])
}

func decodePart(lines *bytes.Buffer, rows int, to *readRows) error {
	for decoder := jsontext.NewDecoder(lines); ; rows-- {
		switch err := jsonv2.UnmarshalDecode(decoder, to); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case rows == 0: // several are on a line
			return errRows
		}
	}
}

// decodeHeader reads the header. What reads lines to its end also checks the checksum.
func decodeHeader(from io.Reader, maxText int) (h savedHeader, lines *bufio.Reader, err error) {
	in, err := gzip.NewReader(from)
	if err == nil {
		lines = bufio.NewReaderSize(http.MaxBytesReader(nil, in, int64(maxText)), 64<<10)
		var first []byte
		if first, err = lines.ReadBytes('\n'); err == nil {
			err = jsonv2.Unmarshal(first, &h)
		}
	}
	switch {
	case err != nil:
		err = fmt.Errorf("it is no file of saved policies, or cut short or damaged: %w", err)
	case h.Format != format:
		err = fmt.Errorf("it has format %d; this program reads format %d", h.Format, format)
	}
	return h, lines, err
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
	s.enforceSaved(saved, FromDisk)
}

// enforceSaved puts a saved snapshot in force, unless rows of Postgres or newer saved ones are.
func (s *Sync) enforceSaved(saved Saved, from string) {
	s.swapping.Lock()
	defer s.swapping.Unlock()
	before := s.Snapshot()
	if before != nil && (s.Stats().Source == FromPostgres || before.Version() >= saved.Rows.Version) {
		return
	}
	snapshot, found := policy.NewSnapshot(saved.Rows, nil)
	fresh := s.faults.replace(found, nil, nil)
	s.candidate = saved.Candidate
	s.swap(s.withCandidate(snapshot), from, saved.Confirmed, func(*state) {})
	s.log.Info("the saved policies are in force until Postgres answers", "source", from,
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
