package server

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"

	"golang.org/x/sys/unix"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/node/engine"
)

// maxState bounds the file of what a worker has in memory, in bytes: a million buckets take about 80 MB.
const maxState = 256 << 20

// saveState returns a file in memory with the counters of this worker for the next one; nil if that fails.
func saveState(e *engine.Engine, log *slog.Logger) *os.File {
	fd, err := unix.MemfdCreate("counters", unix.MFD_CLOEXEC)
	if err != nil {
		log.Warn("counters in memory are not handed over: they start again", "error", err)
		return nil
	}
	file := os.NewFile(uintptr(fd), "counters")
	buffered := bufio.NewWriterSize(file, 1<<20)
	err = errors.Join(e.Save(buffered), buffered.Flush())
	if size, failed := file.Seek(0, io.SeekCurrent); size > maxState {
		err = fmt.Errorf("they have %d bytes, more than %d", size, maxState)
	} else {
		err = errors.Join(err, failed)
	}
	_, failed := file.Seek(0, io.SeekStart)
	if err = errors.Join(err, failed); err != nil {
		log.Warn("counters in memory are not handed over: they start again", "error", errors.Join(err, file.Close()))
		return nil
	}
	return file
}

// loadState continues with the counters of the worker before, which are in file; nil: there are none.
func loadState(e *engine.Engine, file *os.File, log *slog.Logger) {
	if file == nil {
		return
	}
	defer file.Close()
	if err := e.Load(bufio.NewReaderSize(file, 1<<20)); err != nil {
		log.Warn("counters in memory start again: those of the worker before cannot be read", "error", err)
		return
	}
	log.Info("counters in memory go on",
		"buckets", e.Stores.Local().Buckets, "reservations", e.Reservations.Stats().Kept)
}
