package policysync

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
)

const (
	// saveShare is how many times longer than a save the pause after it is.
	saveShare = 20
	// saveAgain is how old the saved snapshot gets before it is saved again though its version is the newest still: what is
	// read after a start tells how long ago it was that.
	saveAgain = 10 * time.Minute
	// leftover is the age at which a file that is not complete is nobody's any more: its process was killed.
	leftover = time.Hour
)

// loadSaved puts the saved snapshot in force, if there is one that can be used.
func (s *Sync) loadSaved() {
	s.removeLeftovers()
	saved, err := ReadFile(s.path(), s.options.MaxRows)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err != nil {
		s.log.Warn("the saved policies cannot be used: only the config applies until Postgres answers", "error", err)
		return
	}
	snapshot, found := policy.NewSnapshot(saved.Rows, nil)
	fresh := s.faults.all(found)
	s.swap(snapshot, FromDisk, saved.Confirmed, func(*state) {})
	s.log.Info("the saved policies are in force until Postgres answers",
		"version", snapshot.Version(), "rows", snapshot.Len(), "age_seconds", time.Since(saved.Confirmed).Seconds())
	s.logFaults(fresh, snapshot.Version())
}

// removeLeftovers removes what processes that were killed while they saved have left in the folder.
func (s *Sync) removeLeftovers() {
	found, err := filepath.Glob(s.path() + ".*")
	for _, path := range found {
		var info fs.FileInfo
		if info, err = os.Stat(path); err == nil && time.Since(info.ModTime()) > leftover {
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

// saveUntil saves new snapshots until ctx ends: the first at once, and of those that follow quickly only the last.
func (s *Sync) saveUntil(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.unsaved:
		}
		s.save(false)
		pause := time.NewTimer(max(s.options.SaveEvery, saveShare*s.saveTime))
		select {
		case <-ctx.Done():
		case <-pause.C:
		}
		pause.Stop()
	}
}

// save saves the snapshot, unless it was saved or is itself from the file. A snapshot of the version that was saved is only of
// interest if it is the last one, or after a while.
func (s *Sync) save(last bool) {
	s.mu.Lock()
	source, confirmed := s.state.source, s.state.confirmed
	s.mu.Unlock()
	snapshot := s.Snapshot()
	if s.options.Dir == "" || source != FromPostgres || snapshot == s.saved {
		return
	}
	began := time.Now()
	if !last && s.saved != nil && s.saved.Version() == snapshot.Version() && began.Sub(s.savedAt) < saveAgain {
		return
	}
	err := writeFile(s.path(), snapshot, confirmed)
	s.saved, s.savedAt, s.saveTime = snapshot, began, time.Since(began)
	if err != nil {
		s.log.Warn("saving the policies failed: a start without Postgres would use older ones, or none", "error", err)
		s.count(func(state *state) { state.fails++ })
		return
	}
	s.count(func(state *state) { state.saves++ })
}

// writeFile puts a snapshot in the place of the one that was saved before. Whatever happens meanwhile, the file is one of
// the two; nobody but this user can read it.
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
	file, err := os.CreateTemp(dir, filepath.Base(path)+".*") // it is readable by this user alone
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

// syncFolder has the file's new name survive a loss of power.
func syncFolder(dir string) error {
	folder, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}
