package clock

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
)

const hour = 3600 * limit.Second

// machine is a computer whose time of day somebody sets.
type machine struct{ wall, elapsed limit.Micros }

func newMachine() *machine { return &machine{wall: 1_700_000_000 * limit.Second} }

func (m *machine) read() (wall, elapsed limit.Micros) { return m.wall, m.elapsed }

func (m *machine) pass(d limit.Micros) { m.wall, m.elapsed = m.wall+d, m.elapsed+d }

func (m *machine) step(d limit.Micros) { m.wall += d }

func TestAClockComesBackToTheTimeOfDaySlowlyAndStaysThere(t *testing.T) {
	for _, off := range []limit.Micros{hour, -hour, limit.Second / 2} {
		m := newMachine()
		c := NewOf(m.read)
		m.step(off)
		last := c.Now()
		for passed := limit.Micros(0); passed < 102*max(off, -off); passed += limit.Second {
			m.pass(limit.Second)
			now := c.Now()
			if ran := now - last; ran < limit.Second-limit.Second/slew || ran > limit.Second+limit.Second/slew {
				t.Fatalf("off by %d: it ran %d µs in a second", off, ran)
			}
			last = now
		}
		if m.pass(hour); c.Now() != m.wall {
			t.Errorf("off by %d at first: it is still off by %d", off, m.wall-c.Now())
		}
	}
}

func TestAWindowIsAlignedToTheEpochWhereTheTimeOfDayWasRight(t *testing.T) {
	m := newMachine()
	c := NewOf(m.read)
	for range 1000 {
		m.pass(hour / 7)
		if c.Now() != m.wall {
			t.Fatalf("it shows %d, and the time of day is %d", c.Now(), m.wall)
		}
	}
}

func TestAClockNeverStepsWhateverTheTimeOfDayDoes(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		m := newMachine()
		c := NewOf(m.read)
		last := c.Now()
		for range rapid.IntRange(1, 100).Draw(rt, "steps") {
			m.step(limit.Micros(rapid.Int64Range(-3*int64(hour), 3*int64(hour)).Draw(rt, "step")))
			passed := limit.Micros(rapid.Int64Range(0, int64(hour)).Draw(rt, "passed"))
			m.pass(passed)
			now := c.Now()
			if ran := now - last; ran < passed-passed/slew-1 || ran > passed+passed/slew+1 { // rounding
				rt.Fatalf("it ran %d µs while %d passed", ran, passed)
			}
			last = now
		}
	})
}

func TestAClockGoesOnWhereThatOfAnotherProcessHasStopped(t *testing.T) {
	m := newMachine()
	c := NewOf(m.read)
	m.step(hour)
	m.pass(limit.Second)
	other := NewOf(m.read)
	other.Set(c.Now())
	for range 100 {
		m.pass(limit.Second)
		assert.Equal(t, c.Now(), other.Now())
	}
}
