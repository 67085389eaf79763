package usage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// ReporterOptions.Dir has a file for each batch that waits, of any process. Processes that share the folder send what
// they find there: a batch that two of them send counts once.
const (
	batchFile = ".batch" // behind epoch and seq
	newFile   = ".new"   // behind the name of a file until it is complete
	// staleAfter is the age at which a file that was never completed is removed: its process was killed.
	staleAfter = time.Hour
)

// saved is the file of a batch, as JSON.
type saved struct {
	Node    string
	Began   time.Time // by the wall clock
	Payload []byte
}

func fileName(epoch string, seq int64) string {
	return fmt.Sprintf("%s-%020d%s", epoch, seq, batchFile)
}

// save writes a batch to a folder. The file is there as a whole or not at all, unless the machine fails.
func (w *waiting) save(dir string) error {
	text, err := json.Marshal(w.saved)
	if err == nil {
		err = os.MkdirAll(dir, 0o700)
	}
	if err != nil {
		return err
	}
	path := filepath.Join(dir, fileName(w.epoch, w.seq))
	if err = os.WriteFile(path+newFile, text, 0o600); err == nil {
		err = os.Rename(path+newFile, path)
	}
	if err != nil {
		_ = os.Remove(path + newFile)
		return err
	}
	w.file = path
	return nil
}

func read(path string) (*waiting, error) {
	var b Batch
	w := &waiting{file: path}
	text, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(text, &w.saved)
	}
	if err == nil {
		err = b.UnmarshalBinary(w.Payload)
	}
	if err == nil && filepath.Base(path) != fileName(b.Epoch, b.Seq) {
		err = errors.New("it is of another batch")
	}
	w.epoch, w.seq = b.Epoch, b.Seq
	return w, err
}

// sendLeft sends batches of other processes until one fails. One that its process sends too counts once.
func (r *Reporter) sendLeft(ctx context.Context, left []string, until time.Time) {
	var err error
	for _, path := range left {
		w, failed := read(path)
		switch unread := new(fs.PathError); {
		case errors.Is(failed, fs.ErrNotExist): // its process has sent it
		case errors.As(failed, &unread):
			err = errors.Join(err, failed)
		case failed != nil:
			r.drop(Damaged)
			r.options.Log.Error("a batch of usage of another process was dropped", "error",
				errors.Join(fmt.Errorf("%s: %w", path, failed), os.Remove(path)))
		case time.Now().After(until) || !r.send(ctx, w):
			return
		default:
			r.removeFile(w)
		}
	}
	r.warnOfLeft(err)
}

func (r *Reporter) warnOfLeft(err error) {
	if err != nil {
		r.options.Log.Warn("reading the usage of other processes failed", "error", err)
	}
}

// left returns the files of batches of other processes, the oldest first. Beyond MaxBytes it drops the oldest. It
// removes files that were never completed.
func (r *Reporter) left() (files []string) {
	entries, err := os.ReadDir(r.options.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	found, size := map[string]fs.FileInfo{}, int64(0)
	for _, entry := range entries {
		path := filepath.Join(r.options.Dir, entry.Name())
		info, failed := entry.Info()
		switch {
		case failed != nil: // its process has sent it
		case strings.HasSuffix(path, newFile) && time.Since(info.ModTime()) > staleAfter:
			err = errors.Join(err, os.Remove(path))
		case strings.HasSuffix(path, batchFile) && !strings.HasPrefix(entry.Name(), r.epoch):
			files, found[path] = append(files, path), info
			size += max(info.Size(), fileBytes)
		}
	}
	slices.SortStableFunc(files, func(a, b string) int { return found[a].ModTime().Compare(found[b].ModTime()) })
	for ; size > r.options.MaxBytes; files = files[1:] {
		size -= max(found[files[0]].Size(), fileBytes)
		r.drop(Room)
		err = errors.Join(err, os.Remove(files[0]))
	}
	r.warnOfLeft(err)
	return files
}
