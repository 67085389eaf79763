package policysync

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

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
