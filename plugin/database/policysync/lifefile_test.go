package policysync_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/policysync"
)

// Environment variables of a child process, which follows a database as a node. The first is the node's name.
const (
	childVariable    = "POLICYSYNC_CHILD"
	childDatabase    = "POLICYSYNC_CHILD_DATABASE"
	childSnapshotDir = "POLICYSYNC_CHILD_DIR"
)

// runChild follows the database until it is killed.
func runChild(node string) {
	s, err := policysync.New(policysync.Options{
		Source: policysync.Source{DSN: os.Getenv(childDatabase)}, Node: node, Dir: os.Getenv(childSnapshotDir),
	})
	if err == nil {
		err = s.Run(context.Background())
	}
	fmt.Fprintln(os.Stderr, "the child ends:", err)
	os.Exit(1)
}

// child starts a process that runs a node, waits for its report, and returns the process and a function that kills it.
func (w *world) child(node, dir string) (process *os.Process, kill func()) {
	w.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childVariable+"="+node, childDatabase+"="+w.dsn, childSnapshotDir+"="+dir)
	cmd.Stderr = os.Stderr
	require.NoError(w, cmd.Start())
	kill = func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()         // by the signal
	}
	w.Cleanup(kill)
	await.That(w, node+" reports", func() bool { return w.reports(node) })
	return cmd.Process, kill
}

// reports reports whether there is a report of a node.
func (w *world) reports(node string) bool {
	w.Helper()
	return value[bool](w, `SELECT EXISTS (SELECT FROM rate_limiter.nodes WHERE node = $1)`, node)
}

func TestTheNextProcessRemovesTheReportOfAKilledOneButNotOfAFrozenOne(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir()
	frozen, _ := w.child("frozen", dir)
	require.NoError(t, frozen.Signal(syscall.SIGSTOP))
	_, kill := w.child("killed", dir)
	kill()
	require.True(t, w.reports("killed"), "the report of a killed process was removed")
	options := w.options()
	options.Node, options.Dir, options.BeatEvery = "next", dir, 10*time.Millisecond
	next := start(t, options)
	await.That(w, "the report of the killed process is removed", func() bool { return !w.reports("killed") })
	if !w.reports("frozen") || !w.reports("next") {
		t.Errorf("frozen has a report: %v, next has one: %v; want both", w.reports("frozen"), w.reports("next"))
	}
	await.That(w, "its file is removed too", func() bool {
		files, err := filepath.Glob(filepath.Join(dir, "node.*"))
		return err == nil && len(files) == 2 // of the frozen process and of the next one
	})
	next.stop()
	if left, err := filepath.Glob(filepath.Join(dir, "node.*")); err != nil || len(left) != 1 || w.reports("next") {
		t.Errorf("%v (%v) are left, want only the file of the frozen process", left, err)
	}
}

func TestTheNextProcessRemovesTheReportOfOneThatEndedWithoutPostgres(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir()
	options := w.options()
	options.Node, options.Dir = "first", dir
	first := start(t, options)
	await.That(w, "it reports", func() bool { return w.reports("first") })
	w.write(`ALTER TABLE rate_limiter.nodes RENAME TO away`)
	first.stop()
	w.write(`ALTER TABLE rate_limiter.away RENAME TO nodes`)
	require.True(t, w.reports("first"), "a report was removed without the table")
	options.Node = "second"
	start(t, options)
	await.That(w, "the report of the first is removed", func() bool { return !w.reports("first") && w.reports("second") })
}
