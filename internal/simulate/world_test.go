package simulate

import (
	"container/heap"
	"iter"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
)

// epoch is the time of day at which each simulation begins: the middle of a day, so that a day's window lasts.
var epoch = time.Date(2026, time.January, 7, 12, 0, 0, 0, time.UTC)

// world is the virtual time: an instant, and what is to happen after it. One goroutine runs at a time.
type world struct {
	now     limit.Micros // since the beginning
	events  events
	pushed  uint64
	running *task
	idle    []*task
	tasks   []*task // all of them
}

// wallTime returns the true time of day, in microseconds since the Unix epoch.
func (w *world) wallTime() limit.Micros { return limit.Micros(epoch.UnixMicro()) + w.now }

// time returns the true time of day.
func (w *world) time() time.Time { return epoch.Add(time.Duration(w.now) * time.Microsecond) }

// instant returns the first instant that is not before a time of day.
func instant(t time.Time) limit.Micros {
	return limit.Micros((t.Sub(epoch) + time.Microsecond - 1) / time.Microsecond)
}

// event is something that happens at an instant. Of two at one instant, the one that was added first is first.
type event struct {
	at     limit.Micros
	number uint64
	do     func()
}

// events is a heap.
type events []event

// Len implements heap.Interface.
func (e events) Len() int { return len(e) }

// Less implements heap.Interface.
func (e events) Less(i, j int) bool {
	return e[i].at < e[j].at || e[i].at == e[j].at && e[i].number < e[j].number
}

// Swap implements heap.Interface.
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }

// Push implements heap.Interface.
func (e *events) Push(x any) { *e = append(*e, x.(event)) }

// Pop implements heap.Interface.
func (e *events) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}

// at calls do at an instant, or now if that has passed.
func (w *world) at(instant limit.Micros, do func()) {
	w.pushed++
	heap.Push(&w.events, event{max(instant, w.now), w.pushed, do})
}

// advance runs the events until an instant, which it reaches.
func (w *world) advance(to limit.Micros) {
	for len(w.events) > 0 && w.events[0].at <= to {
		next := heap.Pop(&w.events).(event)
		w.now = next.at
		next.do()
	}
	w.now = max(w.now, to)
}

// task is a coroutine. It does one piece of work after another.
type task struct {
	work  func()
	yield func(struct{}) bool
	step  func() (struct{}, bool)
	stop  func()
}

// start does work as far as it goes without waiting, and the rest of it as the events come.
func (w *world) start(work func()) {
	var t *task
	if n := len(w.idle); n > 0 {
		t, w.idle = w.idle[n-1], w.idle[:n-1]
	} else {
		t = w.newTask()
	}
	t.work = work
	w.resume(t)
}

func (w *world) newTask() *task {
	t := new(task)
	t.step, t.stop = iter.Pull(func(yield func(struct{}) bool) {
		t.yield = yield
		for more := true; more; more = yield(struct{}{}) {
			t.work()
			t.work = nil
			w.idle = append(w.idle, t)
		}
	})
	w.tasks = append(w.tasks, t)
	return t
}

// resume runs a task until it waits or has done its work.
func (w *world) resume(t *task) {
	before := w.running
	w.running = t
	t.step()
	w.running = before
}

// wait suspends the running task until another resumes it.
func (w *world) wait() { w.running.yield(struct{}{}) }

// close ends the tasks, none of which may wait.
func (w *world) close() {
	for _, t := range w.tasks {
		t.stop()
	}
}
