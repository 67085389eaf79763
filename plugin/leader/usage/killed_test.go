package usage

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// A leader is killed before each of its statements in turn, while it unpacks, sums an hour up and closes a day.
func TestALeaderThatIsKilledAtAnyStatementCountsNothingTwice(t *testing.T) {
	w := newWorld(t)
	p := newProcess(1)
	w.report(p.node, p.next(count("acme", 7)), 40*time.Hour)
	w.report(p.node, p.next(count("acme", 11)), 0)
	w.leader.shift = 80 * time.Hour // all hours and days are due
	killed := int64(0)
	for ended := false; !ended; {
		killed++
		w.kill.arm(killed)
		l := w.newLeader()
		l.shift = w.leader.shift
		done, err := l.Once(t.Context())
		ended = err == nil && done.Leading // also if the session before has not lost its lock yet, it starts once more
		if err == nil && !done.Leading {
			killed--
		}
	}
	w.kill.disarm()
	for _, table := range []string{"usage_minutes", "usage_hours", "usage_days"} {
		assert.EqualValues(t, 18, w.admitted(table), "%s has admitted after %d kills", table, killed-1)
	}
	if killed < 20 {
		t.Errorf("a leader ends after %d statements, want more than it needs to sum up", killed)
	}
}
