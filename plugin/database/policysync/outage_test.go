package policysync_test

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/policysync"
)

func TestPoliciesStayInForceWhilePostgresIsStopped(t *testing.T) {
	server := pgtest.Start(t)
	w := worldOn(t, server)
	options := w.options()
	options.Dir = filepath.Join(t.TempDir(), "made", "by the node")
	n := start(t, options)
	n.await(w.policies(1, 3))

	server.Stop(t)
	n.until("contact is lost", func(s policysync.Stats) bool { return !s.Connected })
	lost := n.Stats().Age
	n.until("its age grows", func(s policysync.Stats) bool { return s.Age > lost+50*time.Millisecond })
	if s := n.Stats(); s.Source != policysync.FromPostgres || n.Snapshot().Len() != 3 {
		t.Errorf("while Postgres is stopped the snapshot has %d rows from %s, want 3 from postgres",
			n.Snapshot().Len(), s.Source)
	}

	server.Start(t)
	w.pool.Reset()
	n.until("contact is back", func(s policysync.Stats) bool { return s.Connected })
	n.await(w.policies(4, 5))
	server.Kill(t)
	n.until("contact is lost again", func(s policysync.Stats) bool { return !s.Connected })
	n.stop()
	if away, back := n.log.count(`level=WARN msg="no contact with Postgres`),
		n.log.count(`level=INFO msg="contact with Postgres`); away != 2 || back != 1 {
		t.Errorf("%d warnings of lost contact and %d notes of its return, want 2 and 1:\n%s", away, back, n.log)
	}

	cold := start(t, options)
	cold.until("the saved snapshot is in force", func(s policysync.Stats) bool { return s.Source == policysync.FromDisk })
	if s := cold.Stats(); cold.Snapshot().Len() != 5 || s.Version != 2 || s.Age <= 0 || s.Connected {
		t.Errorf("the saved snapshot has %d rows; %+v", cold.Snapshot().Len(), s)
	}
	cold.until("Postgres is tried", func(policysync.Stats) bool { return cold.log.count("no contact with Postgres") == 1 })

	server.Start(t)
	w.pool.Reset()
	snapshot := cold.await(w.policies(6, 6))
	assert.EqualValues(t, 6, snapshot.Len(), "after the start of Postgres the snapshot has rows")
}

func TestLoadReadsTheSavedSnapshotBeforeRun(t *testing.T) {
	w := newWorld(t)
	options := w.options()
	options.Dir = t.TempDir()
	n := start(t, options)
	n.await(w.policies(1, 2000))
	n.stop() // saves the snapshot
	info, err := os.Stat(fileIn(options.Dir))
	require.NoError(t, err)
	assert.EqualValues(t, 0o600, info.Mode().Perm(), "the file has mode")
	if left, _ := filepath.Glob(fileIn(options.Dir) + ".*"); len(left) > 0 {
		t.Errorf("other files remain: %v", left)
	}
	options.Log = slog.New(slog.DiscardHandler)
	s, err := policysync.New(options)
	require.NoError(t, err)
	s.Load()
	if s.Snapshot() == nil || s.Snapshot().Len() != 2000 {
		t.Fatalf("the snapshot is %v, want one of 2000 rows", s.Snapshot())
	}
	saved, err := policysync.ReadFile(fileIn(options.Dir), 0)
	if err != nil || len(saved.Rows.Policies) != 2000 || time.Since(saved.Confirmed) > time.Minute {
		t.Errorf("the file has %d policies of %v (%v), want 2000 of now", len(saved.Rows.Policies), saved.Confirmed, err)
	}
}

func TestASavedFileThatCannotBeReadIsIgnoredAndKept(t *testing.T) {
	w := newWorld(t)
	options := w.options()
	options.Dir = t.TempDir()
	n := start(t, options)
	n.await(w.policies(1, 100))
	n.stop()
	whole, err := os.ReadFile(fileIn(options.Dir))
	require.NoError(t, err)
	flipped := []byte(string(whole))
	flipped[len(flipped)/2] ^= 4
	for _, c := range []struct {
		what    string
		content []byte
		maxRows int
		why     string
	}{
		{"cut in half", whole[:len(whole)/2], 0, "cut short"},
		{"bit-flipped", flipped, 0, "damaged"},
		{"too large", whole, 99, "snapshot_max_rows (99)"},
		{"empty", nil, 0, "cut short"},
	} {
		t.Run(c.what, func(t *testing.T) {
			require.NoError(t, os.WriteFile(fileIn(options.Dir), c.content, 0o600))
			options := options
			options.MaxRows = c.maxRows
			options.Source.DSN = "postgres://" + closedPort(t) + "/none?sslmode=disable"
			n := start(t, options)
			n.until("Postgres is tried", func(policysync.Stats) bool { return n.log.count("no contact with Postgres") == 1 })
			if n.Snapshot() != nil || n.Stats().Source != policysync.FromNone {
				t.Errorf("there is a snapshot of %d rows from %s, want none", n.Snapshot().Len(), n.Stats().Source)
			}
			if n.log.count("reading the saved policies failed") != 1 || n.log.count(c.why) != 1 {
				t.Errorf("the log lacks %q:\n%s", c.why, n.log)
			}
			n.stop()
			if now, err := os.ReadFile(fileIn(options.Dir)); err != nil || string(now) != string(c.content) {
				t.Errorf("the file was changed (%v)", err)
			}
		})
	}
	require.NoError(t, os.WriteFile(fileIn(options.Dir), flipped, 0o600))
	n = start(t, options)
	n.await(1)
	n.stop()
	_, err = policysync.ReadFile(fileIn(options.Dir), 0)
	assert.NoError(t, err, "a damaged file stays when Postgres")
}

// closedPort returns an address without a listener.
func closedPort(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, listener.Close())
	return listener.Addr().String()
}

func TestANodeWorksWithoutAFolderToSaveIn(t *testing.T) {
	w := newWorld(t)
	options := w.options()
	options.Dir = filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(options.Dir, nil, 0o600))
	n := start(t, options)
	n.await(w.policies(1, 3))
	n.until("saving is tried", func(s policysync.Stats) bool { return s.Unsaved > 0 })
	assert.NotZero(t, n.log.count("saving the policies failed"), "the log lacks the failure:\n%s", n.log)
}

func TestAnIncompleteFileOfAKilledProcessIsRemoved(t *testing.T) {
	w := newWorld(t)
	options := w.options()
	options.Dir = t.TempDir()
	old, young := fileIn(options.Dir)+".1", fileIn(options.Dir)+".2"
	for path, age := range map[string]time.Duration{old: 2 * time.Hour, young: time.Minute} {
		require.NoError(t, os.WriteFile(path, nil, 0o600))
		require.NoError(t, os.Chtimes(path, time.Time{}, time.Now().Add(-age)))
	}
	start(t, options).await(0)
	if left, err := filepath.Glob(fileIn(options.Dir) + ".?"); err != nil || len(left) != 1 || left[0] != young {
		t.Errorf("%v remain (%v), want the young one, which another process may be writing", left, err)
	}
}

func TestRunEndsWhilePostgresDoesNotAnswer(t *testing.T) {
	// It accepts connections and never answers.
	mute, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer mute.Close()
	s, err := policysync.New(policysync.Options{
		Source: policysync.Source{DSN: "postgres://" + mute.Addr().String() + "/db?sslmode=disable"},
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	conn, err := mute.Accept()
	require.NoError(t, err)
	defer conn.Close()
	cancel()
	select {
	case err := <-ended:
		assert.NoError(t, err, "Run ends")
	case <-time.After(patience):
		t.Error("Run does not end while Postgres does not answer")
	}
}

func TestAFrozenServerProcessIsReplacedByAnotherSession(t *testing.T) {
	w := newWorld(t)
	options := w.options()
	options.Node = "" // its only query is that of the version
	n := start(t, options)
	n.await(w.policies(1, 3))
	frozen := value[int](w, `SELECT pid FROM pg_stat_activity WHERE datname = current_database()
		AND application_name = 'tenant-rate-limiting'`)
	require.NoError(t, syscall.Kill(frozen, syscall.SIGSTOP))
	t.Cleanup(func() {
		assert.NoError(t, syscall.Kill(frozen, syscall.SIGCONT))
	})
	snapshot := n.await(w.policies(4, 4))
	n.until("there is another session", func(s policysync.Stats) bool { return s.Contacts >= 2 })
	// On a busy machine more sessions may end.
	if s := n.Stats(); snapshot.Len() != 4 || n.log.count("no contact with Postgres") != int(s.Contacts)-1 {
		t.Errorf("%d rows after %d sessions:\n%s", snapshot.Len(), s.Contacts, n.log)
	}
}

func TestNoLogOrErrorHasThePassword(t *testing.T) {
	const secret = "s3cret"
	file := filepath.Join(t.TempDir(), "dsn")
	if err := os.WriteFile(file, []byte("postgres://ann:"+secret+"@"+closedPort(t)+"/db?sslmode=disable\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	n := start(t, policysync.Options{
		Source: policysync.Source{File: file}, MinPause: time.Millisecond, MaxPause: time.Millisecond,
	})
	n.until("Postgres is tried", func(policysync.Stats) bool { return n.log.count("no contact with Postgres") == 1 })
	if n.log.count(secret) > 0 || n.log.count("user=ann") != 1 {
		t.Errorf("the log has the password, or not the user:\n%s", n.log)
	}
	for _, source := range []policysync.Source{
		{},
		{DSN: "postgres://ann:" + secret + "@db:port/rl"},
		{DSN: "host=db password='" + secret + " sslmode=on"},
		{DSN: "postgres://ann:s3%zz" + secret + "@db/rl"},
		{DSN: "postgres://ann:" + secret + "@db/rl", File: file},
	} {
		_, err := policysync.New(policysync.Options{Source: source})
		if err == nil {
			t.Errorf("%+v: there is no error", source)
		} else if strings.Contains(err.Error(), secret) {
			t.Errorf("the error shows the password: %v", err)
		}
	}
}

func TestAFileOfTheConnectionStringMayBeCreatedLater(t *testing.T) {
	w := newWorld(t)
	options := w.options()
	file := filepath.Join(t.TempDir(), "dsn")
	options.Source = policysync.Source{File: file}
	n := start(t, options)
	n.until("the missing file is logged", func(policysync.Stats) bool {
		return n.log.count("read the file of the connection string") > 0
	})
	version := w.policies(1, 1)
	require.NoError(t, os.WriteFile(file, []byte(w.dsn), 0o600))
	n.await(version)
}
