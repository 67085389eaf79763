package denial

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

func TestASecondIsWrittenShortlyAfterItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, to, end := running(t, Options{})
		defer end()
		wait(300 * time.Millisecond)
		r.Observe(decided("acme", answered{named("minute", policy.Tenant), denies}))
		wait(700 * time.Millisecond)
		synctest.Wait()
		assert.Empty(t, to.events(t), "at the second's end")
		wait(grace)
		synctest.Wait()
		if stats := r.Stats(); len(to.events(t)) != 1 || stats[0].Written != 1 {
			t.Errorf("after its grace %d lines are written, %+v; want 1", len(to.events(t)), stats)
		}
	})
}

func TestASinkThatFailsIsRetriedAndLoggedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, messages := logged()
		r, to, end := running(t, Options{Log: log})
		to.fail(errDiskFull)
		r.Observe(decided("acme", answered{named("minute", policy.Tenant), denies}))
		wait(10 * time.Second)
		synctest.Wait()
		stats := r.Stats()
		if failing := stats[0]; !failing.Failing || failing.Queued != 1 ||
			failing.Written != 0 {
			t.Errorf("while it fails: %+v, want a line that waits", failing)
		}
		to.fail(nil)
		wait(retryEvery)
		end()
		if works := r.Stats()[0]; works.Failing || works.Queued != 0 || works.Written != 1 {
			t.Errorf("after it worked: %+v, want the line written", works)
		}
		const want = `level=WARN msg="writing denial events failed; they are queued, and dropped ` +
			`when the queue is full" sink=shelf error="no space left on device"
level=INFO msg="denial events are being written again" sink=shelf dropped_so_far=0
`
		assert.Equal(t, want, messages.String(), "logged\n%s", messages)
	})
}

func TestABatchThatASinkNeverTakesIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, to, end := running(t, Options{RetryFor: 20 * time.Second})
		to.fail(errDiskFull)
		r.Observe(decided("acme", answered{named("minute", policy.Tenant), denies}))
		wait(25 * time.Second)
		r.Observe(decided("globex", answered{named("minute", policy.Tenant), denies}))
		to.fail(nil)
		end()
		events := to.events(t)
		if s := r.Stats()[0]; s.Dropped[SinkFailed] != 1 || len(events) != 1 ||
			events[0].Org != "globex" {
			t.Errorf("%+v, written %+v; want the first line given up, and the second written", s, events)
		}
	})
}

func TestWhatDoesNotFitIntoTheQueueIsDroppedAndCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most = 4 << 10
		r, to, end := running(t, Options{QueueBytes: most})
		to.fail(errDiskFull)
		for i := range 100 {
			r.Observe(decided(fmt.Sprint("org-", i), answered{named("minute", policy.Tenant), denies}))
			wait(20 * time.Millisecond)
		}
		wait(3 * time.Second)
		synctest.Wait()
		bytes := 0
		for _, o := range r.outlets {
			o.mu.Lock()
			bytes += o.bytes
			o.mu.Unlock()
		}
		if s := r.Stats()[0]; s.Dropped[Queue] == 0 || s.Queued == 0 || bytes > most {
			t.Errorf("%d bytes in the queue, %+v; want at most %d, and drops", bytes, s, most)
		}
		to.fail(nil)
		end()
		count, _ := sums(to.events(t))
		if s := r.Stats()[0]; s.Queued != 0 || count+s.Dropped[Queue] != 100 {
			t.Errorf("%d denials written, %+v; want all 100 accounted for", count, s)
		}
	})
}

// stuck is a sink whose Write does not return, whatever its context says.
type stuck struct{ free chan struct{} }

func (s stuck) Write(context.Context, []Line) error {
	<-s.free
	return nil
}

func TestASinkThatIsStuckHoldsUpNeitherRequestsNorOtherSinksNorTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pipe, to := stuck{make(chan struct{})}, &shelf{}
		r, _, end := running(t, Options{Sinks: map[string]Sink{"pipe": pipe, "shelf": to}, FlushTime: time.Second})
		for range 5 {
			r.Observe(decided("acme", answered{named("minute", policy.Tenant), denies}))
			wait(time.Second)
		}
		start := time.Now()
		end()
		if took := time.Since(start); took > time.Second+endGrace {
			t.Errorf("the end took %v", took)
		}
		stats := r.Stats()
		if s := stats[0]; s.Name != "pipe" || s.Dropped[Shutdown] != 5 {
			t.Errorf("%+v, want all lines dropped at the end", s)
		}
		count, _ := sums(to.events(t))
		assert.EqualValues(t, 5, count, "the other sink has denials")
		close(pipe.free)
		synctest.Wait()
		assert.EqualValues(t, stats[0], r.Stats()[0], "what was written too late has changed the account")
	})
}

func TestTheEndWritesWhatTheSinkTakesInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, to, end := running(t, Options{FlushTime: 2 * time.Second})
		to.fail(errDiskFull)
		r.Observe(decided("acme", answered{named("minute", policy.Tenant), denies}))
		wait(30 * time.Second) // by now it is tried every five seconds
		time.AfterFunc(time.Second, func() { to.fail(nil) })
		end()
		r.Observe(decided("acme", answered{named("minute", policy.Tenant), denies}))
		if s := r.Stats()[0]; s.Written != 1 || s.Dropped[Shutdown] != 1 {
			t.Errorf("%+v, want the first denial written, and the one after the end dropped", s)
		}
	})
}

func TestWithoutRunMemoryIsBoundedAndDenialsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := New(Options{Sinks: map[string]Sink{"shelf": &shelf{}}, Log: slog.New(slog.DiscardHandler)})
		const seconds = 100
		for range seconds {
			r.Observe(decided("acme", answered{named("minute", policy.Tenant), denies}))
			wait(time.Second)
		}
		stats := r.Stats()
		want := uint64(seconds - maxFinished - 1)
		if stats[0].Dropped[Queue] != want {
			t.Errorf("%+v, want %d denials dropped and the rest kept", stats, want)
		}
	})
}

func TestRequestsOfManyThreadsAreAllCounted(t *testing.T) {
	r, to, end := running(t, Options{MaxGroups: 3})
	const threads, each = 8, 2000
	var group sync.WaitGroup
	for i := range threads {
		group.Go(func() {
			d := decided(fmt.Sprint("org-", i), answered{named("minute", policy.Tenant), denies})
			for range each {
				r.Observe(d)
				r.Stats()
			}
		})
	}
	group.Wait()
	end()
	r.Stats()
	if count, answers := sums(to.events(t)); count != threads*each || answers != threads*each {
		t.Errorf("lines count %d denials and %d answers, want %d", count, answers, threads*each)
	}
}

// patient is a sink that takes a batch only when its context has ended, which is too late.
type patient struct{}

func (patient) Write(ctx context.Context, _ []Line) error {
	<-ctx.Done()
	return ctx.Err()
}

func TestAWriteThatTakesTooLongIsEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _, end := running(t, Options{Sinks: map[string]Sink{"patient": patient{}}})
		r.Observe(decided("acme", answered{named("minute", policy.Tenant), denies}))
		wait(time.Second + grace + writeTime)
		synctest.Wait()
		if s := r.Stats()[0]; !s.Failing || s.Queued != 1 {
			t.Errorf("%+v, want a failure, and the line to wait", s)
		}
		wait(time.Second) // it is being written again
		start := time.Now()
		end()
		assert.EqualValues(t, DefaultFlushTime, time.Since(start), "the end took")
		s := r.Stats()[0]
		assert.EqualValues(t, 1, s.Dropped[Shutdown], "%+v, want the line dropped", s)
	})
}

func TestAClockThatStepsBackLosesNoDenial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, to, end := running(t, Options{})
		d := decided("acme", answered{named("minute", policy.Tenant), denies})
		c, ok := causeOf(d, 0)
		if !ok {
			t.Fatal("the bound has nothing against the request")
		}
		for _, step := range []time.Duration{0, -time.Hour, -time.Hour, 20 * time.Microsecond, 10 * time.Microsecond} {
			r.mu.Lock()
			r.count(time.Now().Add(step), d, c)
			r.mu.Unlock()
		}
		end()
		count, _ := sums(to.events(t))
		if stats := r.Stats(); count != 5 || stats[0].Written != 3 {
			t.Errorf("%d denials written, %+v; want 5 in 3 lines", count, stats)
		}
		for _, e := range to.events(t) {
			if e.First > e.Last {
				t.Errorf("the first denial was at %s, the last at %s", e.First, e.Last)
			}
		}
	})
}
