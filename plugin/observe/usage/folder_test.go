package usage

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// filesIn returns the names of the batches in a folder.
func filesIn(t *testing.T, dir string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*"+batchFile))
	require.NoError(t, err)
	return files
}

func TestTheNextProcessReportsWhatAnEndedOneLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, sink, dir := NewCounter(), newShelf(), t.TempDir()
		sink.setFail(failing(errDown))
		first, end := running(t, ReporterOptions{Counter: c, Sink: sink, Dir: dir, Node: "node-1/a"})
		elapse(time.Second) // between two batches
		for range 3 {
			admit(t, c, "acme", 1)
			elapse(5 * time.Second)
		}
		began := time.Now()
		end()
		assert.Zero(t, time.Since(began), "the end took although nothing is lost")
		elapse(time.Hour)
		sink.setFail(nil)
		second, end := running(t, ReporterOptions{Counter: c, Sink: sink, Dir: dir, Node: "node-1/b"})
		elapse(6 * time.Second)
		if sink.requests() != 3 || second.Stats().Waiting != 0 {
			t.Errorf("%d requests are stored, want 3; stats are %+v", sink.requests(), second.Stats())
		}
		age := sink.seen().ages[delivered{"node-1/a", first.epoch, 1}]
		assert.Equal(t, time.Hour+21*time.Second, age, "the first batch began ago; %v", sink.seen().order)
		end()
		if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
			t.Errorf("%v stays (%v)", entries, err)
		}
	})
}

func TestABatchThatTwoProcessesSendIsSentByBothWithOneName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, dir, down, up := NewCounter(), t.TempDir(), newShelf(), newShelf()
		down.setFail(failing(errDown))
		first, _ := running(t, ReporterOptions{Counter: c, Sink: down, Dir: dir, Node: "node-1/a"})
		admit(t, c, "acme", 3)
		elapse(6 * time.Second)
		running(t, ReporterOptions{Counter: NewCounter(), Sink: up, Dir: dir})
		elapse(6 * time.Second)
		down.setFail(nil)
		elapse(6 * time.Second)
		id := delivered{"node-1/a", first.epoch, 1}
		if up.requests() != 3 || !reflect.DeepEqual(up.seen().stored[id], down.seen().stored[id]) {
			t.Errorf("one process has stored %+v and the other %+v", up.seen().stored, down.seen().stored)
		}
		assert.Empty(t, filesIn(t, dir))
	})
}

func TestAFileThatCannotBeReadIsDroppedAndCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, sink, dir := NewCounter(), newShelf(), t.TempDir()
		sink.setFail(failing(errDown))
		_, end := running(t, ReporterOptions{Counter: c, Sink: sink, Dir: dir})
		elapse(time.Second) // between two batches
		for range 6 {
			admit(t, c, "acme", 1)
			elapse(5 * time.Second)
		}
		end()
		files := filesIn(t, dir)
		for i, damage := range []func([]byte) []byte{
			func([]byte) []byte { return nil },
			func(text []byte) []byte { return append([]byte("other"), text...) },
			func(text []byte) []byte { return text[:len(text)-1] },
			func(text []byte) []byte { return text[:20] },
		} {
			text, err := os.ReadFile(files[i])
			if err == nil {
				err = os.WriteFile(files[i], damage(text), 0o600)
			}
			require.NoError(t, err)
		}
		require.NoError(t, os.Rename(files[5], strings.Replace(files[5], "6.", "7.", 1)))
		sink.setFail(nil)
		second, _ := running(t, ReporterOptions{Counter: c, Sink: sink, Dir: dir})
		elapse(6 * time.Second)
		if s := second.Stats(); s.Dropped[Damaged] != 5 || sink.requests() != 1 || s.Waiting != 0 {
			t.Errorf("stats are %+v with %d requests, want 5 of 6 batches dropped", s, sink.requests())
		}
	})
}

func TestBatchesOfEndedProcessesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, sink, dir := NewCounter(), newShelf(), t.TempDir()
		sink.setFail(failing(errDown))
		for range 4 { // a node that is restarted again and again while Postgres is unavailable
			_, end := running(t, ReporterOptions{Counter: c, Sink: sink, Dir: dir})
			admit(t, c, "acme", 1)
			elapse(6 * time.Second)
			admit(t, c, "acme", 1)
			end()
		}
		r, _ := running(t, ReporterOptions{Counter: c, Sink: sink, Dir: dir, MaxBytes: 3 * fileBytes})
		elapse(6 * time.Second)
		if s := r.Stats(); s.Dropped[Room] != 5 || s.Waiting != 1 {
			t.Errorf("stats are %+v, want 5 of 8 batches of others dropped", s)
		}
	})
}

func TestProcessesThatShareAFolderLoseNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink, dir := newShelf(), t.TempDir()
		sink.setFail(failing(errDown))
		var all []*Reporter
		var counters []*Counter
		for range 2 {
			c := NewCounter()
			r, _ := running(t, ReporterOptions{Counter: c, Sink: sink, Dir: dir, MaxBytes: 30 * fileBytes})
			all, counters = append(all, r), append(counters, c)
		}
		for range 25 {
			for _, c := range counters {
				admit(t, c, "acme", 1)
			}
			elapse(5 * time.Second)
		}
		sink.setFail(nil)
		elapse(2 * time.Minute)
		for _, r := range all {
			assert.Zero(t, r.Stats().Dropped[Room])
		}
		assert.EqualValues(t, 50, sink.requests())
		assert.Empty(t, filesIn(t, dir))
	})
}

func TestWithoutAFolderBatchesWaitInMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, text := logged()
		c, sink, file := NewCounter(), newShelf(), filepath.Join(t.TempDir(), "file")
		require.NoError(t, os.WriteFile(file, nil, 0o600))
		_, end := running(t, ReporterOptions{Counter: c, Sink: sink, Dir: file, Log: log})
		admit(t, c, "acme", 3)
		end()
		if sink.requests() != 3 || strings.Count(text.String(), "usage cannot be saved") != 1 {
			t.Errorf("%d requests are stored, want 3:\n%s", sink.requests(), text)
		}
	})
}

// The ages of batches of a process that runs are by a clock that cannot be set. Those of an ended one are not: then the
// database takes the batch as one that began now, or so long ago.
func TestAMachineWhoseClockWasSetByAnHourReportsAPossibleAge(t *testing.T) {
	for set, want := range map[time.Duration]time.Duration{ // of the clock, meanwhile
		-time.Hour: 0,
		time.Hour:  time.Hour + 11*time.Second,
	} {
		synctest.Test(t, func(t *testing.T) {
			c, sink, dir := NewCounter(), newShelf(), t.TempDir()
			sink.setFail(failing(errDown))
			first, end := running(t, ReporterOptions{Counter: c, Sink: sink, Dir: dir})
			admit(t, c, "acme", 3)
			elapse(6 * time.Second)
			end()
			setBack(t, filesIn(t, dir)[0], set)
			sink.setFail(nil)
			running(t, ReporterOptions{Counter: c, Sink: sink, Dir: dir})
			elapse(5 * time.Second)
			if age := sink.seen().ages[delivered{"node-1", first.epoch, 1}]; age != want || sink.requests() != 3 {
				t.Errorf("the clock was set by %v: %d requests began %v ago, want 3 and %v", set, sink.requests(), age, want)
			}
		})
	}
}

// setBack changes the instant in the file of a batch as if the clock had been set by a duration since.
func setBack(t *testing.T, file string, by time.Duration) {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	var saved saved
	require.NoError(t, json.Unmarshal(text, &saved))
	saved.Began = saved.Began.Add(-by)
	text, err = json.Marshal(saved)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(file, text, 0o600))
}
