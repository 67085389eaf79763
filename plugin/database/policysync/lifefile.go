package policysync

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// A life file lies in Options.Dir. The node's process locks it (flock), writes the name of the node into it, and the
// kernel unlocks it when the process ends. So an unlocked file with a name proves that its process has ended. A killed
// process leaves its report behind; the next process with the same folder removes it.
const (
	lifeFiles = "node.*.life"
	maxNode   = 256 // bytes of a node's name
)

// createLifeFile creates and locks the file. Without it an operator has to remove the report of a killed process.
func (s *Sync) createLifeFile() {
	if s.options.Dir == "" || s.options.Node == "" {
		return
	}
	var err error
	if s.life, err = newLife(s.options.Dir, s.options.Node); err != nil {
		s.log.Warn("creating this node's life file failed: "+
			"if the process is killed, its report stays until ratelimit fleet forget",
			"error", fmt.Errorf("record the life of a node: %w", err))
	}
}

func newLife(dir, node string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	file, err := os.CreateTemp(dir, lifeFiles)
	if err != nil {
		return nil, err
	}
	err = lock(file)
	if err == nil {
		_, err = file.WriteString(node)
	}
	if err != nil {
		return nil, errors.Join(err, os.Remove(file.Name()), file.Close())
	}
	return file, nil
}

// lock locks a file for this process, or returns syscall.EWOULDBLOCK if another process has locked it.
func lock(file *os.File) error { return syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) }

// closeLifeFile unlocks the file after the last report, and removes it if the report was removed.
func (s *Sync) closeLifeFile() {
	if s.life == nil {
		return
	}
	var err error
	if s.reportRemoved {
		err = os.Remove(s.life.Name())
	}
	if err = errors.Join(err, s.life.Close()); err != nil {
		s.log.Debug("removing this node's life file failed", "error", err)
	}
}

// removeDeadReports removes the reports of processes that used the same folder and were killed.
func (s *Sync) removeDeadReports(ctx context.Context, conn *pgx.Conn) {
	if s.life == nil || s.reportsNothing() {
		return
	}
	paths, err := filepath.Glob(filepath.Join(s.options.Dir, lifeFiles))
	for _, path := range paths {
		if path != s.life.Name() {
			err = errors.Join(err, s.removeIfDead(ctx, conn, path))
		}
	}
	if err != nil {
		s.log.Debug("removing the report of a process that has ended failed", "error", err)
	}
}

// removeIfDead removes a life file and its process's report, unless the process lives.
func (s *Sync) removeIfDead(ctx context.Context, conn *pgx.Conn, path string) (err error) {
	file, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil // another process was faster
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	if info, err := file.Stat(); err != nil || info.Size() == 0 && time.Since(info.ModTime()) < staleAfter {
		return err // its process has not locked it yet
	}
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
	ctx, cancel := context.WithTimeout(ctx, removeReportTime)
	defer cancel()
	removed, err := RemoveReport(ctx, conn, string(node))
	if err != nil {
		return err
	}
	if removed {
		s.log.Info("removed the report of a process that has ended", "node", string(node))
	}
	return os.Remove(path)
}
