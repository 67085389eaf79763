package usage

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// A process has a subfolder of ReporterOptions.Dir, named after its epoch. There it locks the file lockFile. The kernel
// unlocks it when the process ends, so an unlocked file proves that the batches beside it wait for another process.
const (
	lockFile  = "lock"
	batchFile = ".batch" // behind seq
	newFolder = ".new"   // behind the epoch, until it is locked
	// staleAfter is the age at which a folder that was never locked is removed: its process was killed.
	staleAfter = time.Hour
)

// folder is a locked subfolder with batches of one epoch.
type folder struct {
	path string
	node string
	lock *os.File
}

// openFolder makes the folder of a process and locks it.
func openFolder(dir, epoch, node string) (f *folder, err error) {
	path := filepath.Join(dir, epoch)
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("make a folder for usage: %w", err), os.RemoveAll(path+newFolder))
		}
	}()
	if err := os.MkdirAll(path+newFolder, 0o700); err != nil {
		return nil, err
	}
	lock, err := os.Create(filepath.Join(path+newFolder, lockFile))
	if err != nil {
		return nil, err
	}
	if err = flock(lock); err == nil {
		err = os.Rename(path+newFolder, path)
	}
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return &folder{path: path, node: node, lock: lock}, nil
}

// flock locks a file for this process, or returns syscall.EWOULDBLOCK if another process has locked it.
func flock(file *os.File) error {
	return syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
}

// adoptFolder locks the folder of a process that has ended; nil: the process lives, or another one was faster.
func adoptFolder(path string) (*folder, error) {
	lock, err := os.Open(filepath.Join(path, lockFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	switch err := flock(lock); {
	case errors.Is(err, syscall.EWOULDBLOCK):
		return nil, lock.Close()
	case err != nil:
		return nil, errors.Join(err, lock.Close())
	}
	return &folder{path: path, lock: lock}, nil
}

// close unlocks the folder, and removes it if it has no batches.
func (f *folder) close(empty bool) error {
	var err error
	if empty {
		err = os.RemoveAll(f.path)
	}
	return errors.Join(err, f.lock.Close())
}

// file returns the path of a batch.
func (f *folder) file(seq int64) string {
	return filepath.Join(f.path, fmt.Sprintf("%020d%s", seq, batchFile))
}

// savedBatch is the file of a batch, as JSON.
type savedBatch struct {
	Node    string
	Began   time.Time // by the wall clock
	Payload []byte
}

// save writes a batch. The file is there as a whole or not at all, unless the machine fails.
func (f *folder) save(w *waiting) error {
	text, err := json.Marshal(savedBatch{f.node, w.began, w.payload})
	if err != nil {
		return err
	}
	path := f.file(w.seq)
	err = os.WriteFile(path+newFolder, text, 0o600)
	if err == nil {
		err = os.Rename(path+newFolder, path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(path+newFolder))
	}
	return nil
}

// remove removes the file of a batch.
func (f *folder) remove(seq int64) error { return os.Remove(f.file(seq)) }

// left is the file of a batch that a process has left.
type left struct {
	seq   int64
	bytes int64
}

// list returns the files of the batches, in the order of seq.
func (f *folder) list() ([]left, error) {
	entries, err := os.ReadDir(f.path) // sorted by name
	if err != nil {
		return nil, err
	}
	var all []left
	for _, entry := range entries {
		digits, ok := strings.CutSuffix(entry.Name(), batchFile)
		seq, malformed := strconv.ParseInt(digits, 10, 64)
		if !ok || malformed != nil {
			continue
		}
		info, err := entry.Info()
		if err != nil {
			return nil, err
		}
		all = append(all, left{seq, info.Size()})
	}
	return all, nil
}

// read reads the file of a batch.
func (f *folder) read(seq int64) (s savedBatch, err error) {
	text, err := os.ReadFile(f.file(seq))
	if err == nil {
		err = json.Unmarshal(text, &s)
	}
	var b Batch
	if err == nil {
		err = b.UnmarshalBinary(s.Payload)
	}
	if err == nil && (b.Seq != seq || b.Epoch != filepath.Base(f.path)) {
		err = errors.New("it is of another batch")
	}
	return s, err
}

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
