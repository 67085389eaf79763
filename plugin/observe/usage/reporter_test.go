package usage

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var errDown = errors.New("connection denied by a closed port")

// elapse lets time pass, and waits for what happens meanwhile.
func elapse(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// admit counts n requests of a tenant.
func admit(t testing.TB, c *Counter, tenant string, n int) {
	d := decided(t, tenant, "GET /x", answered{daily, 1, admits(9)})
	for range n {
		c.Observe(d)
	}
}

func TestWhatIsCountedIsReportedEveryFewSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, sink := NewCounter(), newShelf()
		r, _ := running(t, ReporterOptions{Counter: c, Sink: sink})
		admit(t, c, "acme", 3)
		elapse(4 * time.Second)
		assert.Zero(t, sink.seen().calls, "calls after 4 s")
		elapse(2 * time.Second)
		admit(t, c, "acme", 4)
		elapse(5 * time.Second)
		id := delivered{"node-1", r.epoch, 2}
		want := Batch{Epoch: r.epoch, Seq: 2, Span: 5 * time.Second, Rows: []Row{
			{Key{"acme", "GET /x", ""}, Counts{Admitted: 4, Remaining: NoRemaining}},
			{Key{"acme", "GET /x", "daily//"}, Counts{Admitted: 4, Cost: 4, Remaining: 9}},
		}}
		now := sink.seen()
		if got := now.stored[id]; !reflect.DeepEqual(got, want) || now.ages[id] != 5*time.Second || len(now.stored) != 2 {
			t.Errorf("batch 2 of %d is %+v from %v ago, want %+v", len(now.stored), got, now.ages[id], want)
		}
		if s := r.Stats(); s.Stored != 2 || s.Waiting != 0 || s.Oldest != 0 {
			t.Errorf("stats are %+v", s)
		}
	})
}

func TestAnIdleNodeReportsThatItLives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink := newShelf()
		running(t, ReporterOptions{Counter: NewCounter(), Sink: sink})
		elapse(5*time.Minute + 6*time.Second)
		if n := len(sink.seen().stored); n != 6 || sink.requests() != 0 {
			t.Errorf("%d batches in five minutes, want one at the start and one a minute", n)
		}
	})
}

func TestHowLongReportsWaitToBeUnpackedIsReadEveryMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, text := logged()
		sink, began := newShelf(), time.Now()
		sink.backlog = func() (time.Duration, error) { return time.Since(began), nil }
		r, _ := running(t, ReporterOptions{Counter: NewCounter(), Sink: sink, Log: log})
		elapse(10*time.Minute + 6*time.Second)
		if waits := r.Stats().Backlog; waits < 9*time.Minute || waits > 10*time.Minute+6*time.Second {
			t.Errorf("after ten minutes the oldest batch has been waiting for %v", waits)
		}
		sink.setBacklog(func() (time.Duration, error) { return 0, advised{errDown} })
		elapse(5 * time.Minute)
		if waits := r.Stats().Backlog; waits != 0 || strings.Count(text.String(), "run ratelimit migrate up") != 1 {
			t.Errorf("%v without an answer, want 0 and one line with the advice:\n%s", waits, text)
		}
	})
}

func TestManyRowsAreReportedAtOnceAndInSeveralBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, sink := NewCounter(), newShelf()
		c.maxRows = 40_000
		running(t, ReporterOptions{Counter: c, Sink: sink})
		synctest.Wait()
		for n := range 10_000 {
			admit(t, c, fmt.Sprint("tenant-", n), 1)
		}
		synctest.Wait()
		if n := len(sink.seen().stored); n < 5 || sink.requests() < 9990 || c.Dropped() != 0 {
			t.Errorf("%d batches with %d requests without a wait, want those of 20,000 rows", n, sink.requests())
		}
	})
}

func TestABatchThatPostgresWouldNotTakeIsHalved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, sink, random := NewCounter(), newShelf(), rand.New(rand.NewPCG(1, 2))
		running(t, ReporterOptions{Counter: c, Sink: sink})
		for range MaxRows / 2 { // names that cannot be compressed
			name := make([]rune, MaxName/3)
			for i := range name {
				name[i] = rune(0x4e00 + random.IntN(20_000))
			}
			c.Observe(decided(t, string(name), "GET /x"))
		}
		elapse(6 * time.Second)
		if n := len(sink.seen().stored); n < 2 || sink.requests() != MaxRows/2 {
			t.Errorf("%d batches with %d requests, want several with all", n, sink.requests())
		}
	})
}

func TestABatchWaitsUntilThePostgresThatFailedStoresIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, text := logged()
		c, sink := NewCounter(), newShelf()
		sink.setFail(failing(errDown))
		r, _ := running(t, ReporterOptions{Counter: c, Sink: sink, Log: log})
		admit(t, c, "acme", 3)
		elapse(time.Minute)
		s := r.Stats()
		if s.Waiting != 1 || s.Stored != 0 || s.Failed < 5 || s.Oldest != time.Minute {
			t.Errorf("stats are %+v, want one batch of a minute ago", s)
		}
		admit(t, c, "acme", 4)
		elapse(10 * time.Second)
		sink.setFail(nil)
		elapse(10 * time.Second)
		if sink.requests() != 7 || r.Stats().Waiting != 0 {
			t.Errorf("%d requests are stored, want 7; stats are %+v", sink.requests(), r.Stats())
		}
		for i, id := range sink.seen().order {
			assert.EqualValues(t, int64(i+1), id.seq, "batch came at place %d", i+1)
		}
		first := sink.seen().ages[delivered{"node-1", r.epoch, 1}]
		if first < 70*time.Second || first > 76*time.Second {
			t.Errorf("the first batch began %v before it was stored, want at least 70 s", first)
		}
		if got := strings.Count(text.String(), "usage is"); got != 2 {
			t.Errorf("%d lines, want one when it began to fail and one when it ended:\n%s", got, text)
		}
	})
}

// advised is an error with an advice, as of a database without the function.
type advised struct{ error }

func (advised) Advice() string { return "run ratelimit migrate up" }

func TestWhyUsageIsNotReportedIsLoggedOnceForEachReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, text := logged()
		sink := newShelf()
		sink.setFail(func(call int) error { return fmt.Errorf("port %d: %w", call, errDown) })
		running(t, ReporterOptions{Counter: NewCounter(), Sink: sink, Log: log})
		elapse(time.Minute)
		sink.setFail(func(call int) error { return advised{fmt.Errorf("call %d", call)} })
		elapse(10 * time.Minute)
		if n := strings.Count(text.String(), "usage is not reported"); n != 2 ||
			strings.Count(text.String(), "run ratelimit migrate up") != 1 {
			t.Errorf("%d lines, want 2, one with the advice:\n%s", n, text)
		}
	})
}

func TestABatchThatPostgresRejectsHoldsUpNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, text := logged()
		c, sink := NewCounter(), newShelf()
		sink.setFail(func(call int) error {
			if call == 1 {
				return fmt.Errorf("report: %w", rejection{})
			}
			return nil
		})
		r, _ := running(t, ReporterOptions{Counter: c, Sink: sink, Log: log})
		admit(t, c, "acme", 3)
		elapse(6 * time.Second)
		admit(t, c, "acme", 4)
		elapse(6 * time.Second)
		if s := r.Stats(); s.Dropped[Rejected] != 1 || s.Stored != 1 || sink.requests() != 4 {
			t.Errorf("stats are %+v with %d requests, want one batch dropped and one stored", s, sink.requests())
		}
		assert.Contains(t, text.String(), "rejects it", "the log lacks the reason:\n%s", text)
	})
}

func TestBatchesBeyondTheMaximumAreDroppedTheOldestFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, sink := NewCounter(), newShelf()
		sink.setFail(failing(errDown))
		dir := t.TempDir()
		r, end := running(t, ReporterOptions{Counter: c, Sink: sink, Dir: dir, MaxBytes: 3 * fileBytes})
		elapse(time.Second) // between two batches
		for range 10 {
			admit(t, c, "acme", 1)
			elapse(5 * time.Second)
		}
		elapse(time.Second)
		if s := r.Stats(); s.Waiting != 3 || s.Dropped[Room] != 7 {
			t.Errorf("stats are %+v, want 3 of 10 batches", s)
		}
		assert.Len(t, filesIn(t, dir), 3)
		sink.setFail(nil)
		elapse(10 * time.Second)
		end()
		for _, id := range sink.seen().order {
			if id.seq < 8 {
				t.Errorf("batch %d is stored, want the newest", id.seq)
			}
		}
		if left := filesIn(t, dir); len(left) != 0 || sink.requests() != 3 {
			t.Errorf("%d requests are stored, and %v stay", sink.requests(), left)
		}
	})
}

func TestTheEndReportsTheLastCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, sink := NewCounter(), newShelf()
		dir := t.TempDir()
		_, end := running(t, ReporterOptions{Counter: c, Sink: sink, Dir: dir})
		synctest.Wait()
		admit(t, c, "acme", 3)
		began := time.Now()
		end()
		if sink.requests() != 3 || time.Since(began) != 0 {
			t.Errorf("%d requests are stored after %v, want 3 at once", sink.requests(), time.Since(began))
		}
		if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
			t.Errorf("%v stays (%v)", entries, err)
		}
	})
}

// stuck is a sink that never answers.
type stuck struct{}

func (stuck) Backlog(ctx context.Context) (time.Duration, error) { return 0, nil }

func (stuck) Report(ctx context.Context, _, _ string, _ int64, _ time.Duration, _ []byte) error {
	<-ctx.Done()
	return ctx.Err()
}

func TestTheEndWaitsForABoundedTime(t *testing.T) {
	for _, dir := range []string{"", t.TempDir()} {
		synctest.Test(t, func(t *testing.T) {
			log, text := logged()
			c := NewCounter()
			r, end := running(t, ReporterOptions{Counter: c, Sink: stuck{}, Dir: dir, Log: log})
			admit(t, c, "acme", 3)
			elapse(6 * time.Second)
			admit(t, c, "acme", 4)
			began := time.Now()
			end()
			if took := time.Since(began); took > flushTime {
				t.Errorf("it took %v", took)
			}
			dropped, kept := r.Stats().Dropped[Shutdown], 0
			if dir != "" {
				kept = len(filesIn(t, dir))
			}
			assert.EqualValues(t, [2]int{int(dropped), kept}, map[bool][2]int{true: {2, 0}, false: {0, 2}}[dir == ""],
				"%d batches were dropped and %d kept:\n%s", dropped, kept, text)
		})
	}
}

// The promise: whatever fails, and however often the process is restarted, what is stored is what was counted.
func TestNothingIsLostOrCountedTwice(t *testing.T) {
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			random, sink, dir := rand.New(rand.NewPCG(seed, 1)), newShelf(), t.TempDir()
			sink.setFail(func(int) error { // calls come one after another
				switch random.IntN(4) {
				case 0:
					return errDown
				case 1:
					return lostAnswer{}
				}
				return nil
			})
			want := total{}
			for life := range 4 {
				c := NewCounter()
				c.maxRows = 200
				var end []func()
				for range 1 + life%2 { // during a reload of Kong two processes share the folder
					_, stop := running(t, ReporterOptions{
						Counter: c, Sink: sink, Dir: dir, Every: 50 * time.Millisecond, Node: fmt.Sprint("node-", life),
					})
					end = append(end, stop)
				}
				for _, rows := range observeAtRandom(t, c, seed*100+uint64(life)) {
					want.add(rows)
				}
				for _, stop := range end {
					stop()
				}
				require.Zero(t, c.Dropped(), "counts were dropped")
			}
			sink.setFail(nil)
			last, _ := running(t, ReporterOptions{Counter: NewCounter(), Sink: sink, Dir: dir})
			elapse(3 * lookEvery)
			assert.Equal(t, want, sink.sum(), "seed %d: stored, counted; %+v", seed, last.Stats())
		})
	}
}

// observeAtRandom lets goroutines count requests at random times, and returns what each counted.
func observeAtRandom(t *testing.T, c *Counter, seed uint64) [][]Row {
	all := make([][]Row, 8)
	var group sync.WaitGroup
	for i := range all {
		group.Go(func() {
			random, own := rand.New(rand.NewPCG(seed, uint64(i))), NewCounter()
			for range 100 {
				remaining := random.Int64N(100)
				d := decided(t, fmt.Sprint("tenant-", random.IntN(5)), fmt.Sprint("route-", random.IntN(3)),
					answered{daily, random.Int64N(9), admits(remaining)}, answered{minute, 1, soft(remaining)})
				d.Exchange = uint32(i)
				c.Observe(d)
				own.Observe(d)
				time.Sleep(time.Duration(random.Int64N(int64(5 * time.Millisecond))))
			}
			all[i] = own.cut()
		})
	}
	group.Wait()
	return all
}
