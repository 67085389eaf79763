package usage

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
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
