package usage

import (
	"context"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// sweep sends the batches that ended processes have left in the folder. It drops the oldest of those that are more than
// MaxBytes, also while the sink fails.
func (r *Reporter) sweep(ctx context.Context) {
	if r.options.Dir == "" {
		return
	}
	folders, err := r.adopt()
	if err != nil {
		r.options.Log.Warn("reading the usage of ended processes failed", "error", err)
	}
	defer func() {
		for _, f := range folders {
			if err := f.end(); err != nil {
				r.options.Log.Warn("closing the usage of an ended process failed", "error", err)
			}
		}
		r.recordLeft(folders)
	}()
	r.bound(folders)
	r.recordLeft(folders)
	for _, f := range folders {
		if !r.sendLeft(ctx, f) {
			return
		}
	}
}

// adopted is the locked folder of a process that has ended.
type adopted struct {
	*folder
	from  time.Time // when its process began
	files []left    // that are not sent
}

// end unlocks the folder, and removes it if it has no batches.
func (a *adopted) end() error { return a.close(len(a.files) == 0) }

// removeFirst removes the first file.
func (a *adopted) removeFirst() error {
	err := a.remove(a.files[0].seq)
	a.files = a.files[1:]
	return err
}

// adopt locks the folders of processes that have ended, the oldest first.
func (r *Reporter) adopt() (all []*adopted, err error) {
	entries, err := os.ReadDir(r.options.Dir)
	for _, entry := range entries {
		path := filepath.Join(r.options.Dir, entry.Name())
		info, failed := entry.Info()
		if failed != nil || !entry.IsDir() || entry.Name() == r.epoch {
			continue
		}
		if strings.HasSuffix(entry.Name(), newFolder) && time.Since(info.ModTime()) > staleAfter {
			err = errors.Join(err, os.RemoveAll(path))
		}
		if digits, failed := hex.DecodeString(entry.Name()); failed != nil || len(digits) != epochBytes {
			continue
		}
		f, failed := adoptFolder(path)
		if f == nil {
			err = errors.Join(err, failed)
			continue
		}
		files, failed := f.list()
		if errors.Is(failed, fs.ErrNotExist) { // another process was faster
			err = errors.Join(err, f.lock.Close())
			continue
		}
		if failed != nil {
			err = errors.Join(err, failed, f.close(false))
			continue
		}
		a := &adopted{folder: f, files: files}
		if begun, failed := f.lock.Stat(); failed == nil {
			a.from = begun.ModTime()
		}
		all = append(all, a)
	}
	slices.SortFunc(all, func(a, b *adopted) int { return a.from.Compare(b.from) })
	return all, err
}

// bound drops the oldest batches of ended processes that are more than MaxBytes.
func (r *Reporter) bound(folders []*adopted) {
	total := int64(0)
	for _, f := range folders {
		for _, file := range f.files {
			total += sizeOf(file.bytes)
		}
	}
	for _, f := range folders {
		for total > r.options.MaxBytes && len(f.files) > 0 {
			total -= sizeOf(f.files[0].bytes)
			r.dropFirst(f, Room, nil)
		}
	}
}

// dropFirst drops the first batch of a folder.
func (r *Reporter) dropFirst(f *adopted, why Reason, cause error) {
	r.drop(why)
	if why != Room {
		r.options.Log.Error("a batch of usage of an ended process was dropped",
			"file", f.file(f.files[0].seq), "error", cause)
	}
	if err := f.removeFirst(); err != nil {
		r.options.Log.Warn("removing a batch of usage failed", "error", err)
	}
}

// sendLeft sends the batches of an ended process, and reports whether it may go on with the next one.
func (r *Reporter) sendLeft(ctx context.Context, f *adopted) bool {
	for len(f.files) > 0 {
		if time.Since(r.swept) > r.options.Every { // what is counted meanwhile goes first
			r.swept = time.Time{}
			return false
		}
		seq := f.files[0].seq
		saved, err := f.read(seq)
		switch unread := new(fs.PathError); {
		case errors.As(err, &unread):
			r.options.Log.Warn("reading the usage of an ended process failed", "error", err)
			return false
		case err != nil:
			r.dropFirst(f, Damaged, err)
			continue
		}
		// The clock of this machine may have been set since.
		age := max(time.Since(saved.Began), 0)
		if !r.send(ctx, saved.Node, filepath.Base(f.path), seq, age, saved.Payload) {
			return false
		}
		if err := f.removeFirst(); err != nil {
			r.options.Log.Warn("removing a batch of usage failed: it is sent again", "error", err)
			return false
		}
	}
	return true
}

// recordLeft records how many batches ended processes have left.
func (r *Reporter) recordLeft(folders []*adopted) {
	n := 0
	for _, f := range folders {
		n += len(f.files)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.account.Left = n
}
