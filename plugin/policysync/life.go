package policysync

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// A life is a file in Options.Dir that holds the name of a node and is locked (flock) as long as the node's process
// lives: the kernel unlocks it however the process ends. So a file that is not locked proves that its process has
// ended, where a newer process does not: the older one may be draining still. What was killed cannot take back its
// report, and the next process with the same folder does that for it.
const (
	lifeFiles    = "node.*.life"
	newLifeFiles = "node.*.new" // until they are locked
	maxNode      = 256          // bytes of a node's name
)

// life is this process's own; the zero value is none.
type life struct{ file *os.File }

// beginLife makes and locks the file. Without it a report that stays behind is for people to take back.
func (s *Sync) beginLife() {
	if s.options.Dir == "" || s.options.Node == "" {
		return
	}
	var err error
	if s.life, err = newLife(s.options.Dir, s.options.Node); err != nil {
		s.log.Warn("cannot record this process's life: if it is killed, its report stays until ratelimit fleet forget", "error", err)
	}
}

func newLife(dir, node string) (life, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return life{}, fmt.Errorf("record the life of a node: %w", err)
	}
	file, err := os.CreateTemp(dir, newLifeFiles)
	if err != nil {
		return life{}, fmt.Errorf("record the life of a node: %w", err)
	}
	err = lock(file)
	if err == nil {
		_, err = file.WriteString(node)
	}
	if err == nil {
		err = os.Rename(file.Name(), lifePath(file))
	}
	if err != nil {
		return life{}, errors.Join(fmt.Errorf("record the life of a node: %w", err), os.Remove(file.Name()), file.Close())
	}
	return life{file}, nil
}

// lifePath is the path of a file that newLife has made, once it is locked.
func lifePath(file *os.File) string { return strings.TrimSuffix(file.Name(), ".new") + ".life" }

// lock locks a file for this process alone, or returns syscall.EWOULDBLOCK: another process has it.
func lock(file *os.File) error { return syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) }

// end unlocks the file. If left, the report was taken back, and the file goes.
func (l life) end(left bool) error {
	if l.file == nil {
		return nil
	}
	var err error
	if left {
		err = os.Remove(lifePath(l.file))
	}
	return errors.Join(err, l.file.Close())
}

// endLife ends this process's life, when nothing is reported any more.
func (s *Sync) endLife() {
	if err := s.life.end(s.left); err != nil {
		s.log.Debug("removing the file of this node's life failed", "error", err)
	}
}

// removeDead takes back the reports of processes that used the same folder and have ended without doing that.
func (s *Sync) removeDead(ctx context.Context, conn *pgx.Conn) {
	if s.life.file == nil || s.mute() {
		return
	}
	paths, err := filepath.Glob(filepath.Join(s.options.Dir, lifeFiles))
	for _, path := range paths {
		if path != lifePath(s.life.file) {
			err = errors.Join(err, s.removeIfDead(ctx, conn, path))
		}
	}
	if err = errors.Join(err, removeOldNewLives(s.options.Dir)); err != nil {
		s.log.Debug("removing the report of a process that has ended failed", "error", err)
	}
}

// removeIfDead takes back the report of the process that a file is of, and removes the file, unless the process lives.
func (s *Sync) removeIfDead(ctx context.Context, conn *pgx.Conn, path string) (err error) {
	file, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil // another process was faster
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	switch err := lock(file); {
	case errors.Is(err, syscall.EWOULDBLOCK):
		return nil
	case err != nil:
		return err
	}
	node, err := io.ReadAll(io.LimitReader(file, maxNode))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, farewell)
	defer cancel()
	gone, err := conn.Exec(ctx, leaveSQL, string(node))
	if err != nil {
		return err
	}
	if gone.RowsAffected() > 0 {
		s.log.Info("removed the report of a process that has ended", "node", string(node))
	}
	return os.Remove(path)
}

// removeOldNewLives removes the files of processes that were killed before they had locked theirs.
func removeOldNewLives(dir string) error {
	paths, err := filepath.Glob(filepath.Join(dir, newLifeFiles))
	for _, path := range paths {
		if info, failed := os.Stat(path); failed == nil && time.Since(info.ModTime()) > leftover {
			err = errors.Join(err, os.Remove(path))
		}
	}
	return err
}
