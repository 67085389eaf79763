package metrics

import (
	"maps"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"
)

func TestNoTenantIsCertainToHaveSentMoreThanItDid(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, sent := newSketch(4), map[string]uint64{}
		for range rapid.IntRange(0, 300).Draw(t, "requests") {
			id := strconv.Itoa(rapid.IntRange(0, 40).Draw(t, "tenant"))
			s.count(id)
			sent[id]++
		}
		seen := map[string]bool{}
		for _, c := range s.entries() {
			if seen[c.id] || c.least > sent[c.id] {
				t.Fatalf("%s is certain to have sent %d (twice: %v), and sent %d", c.id, c.least, seen[c.id], sent[c.id])
			}
			seen[c.id] = true
		}
		s.each(func(w *way) {
			if w.id != "" && w.hits < sent[w.id] {
				t.Fatalf("%s is counted %d times at most, and sent %d", w.id, w.hits, sent[w.id])
			}
		})
	})
}

func TestWhoSendsMoreThanAnEighthOfASetsRequestsIsFoundAmongAnyNumber(t *testing.T) {
	const small, large = 100_000, 200
	s := newSketch(500)
	for i := range small {
		s.count("small-" + strconv.Itoa(i))
		s.count("large-" + strconv.Itoa(i%large)) // each half a percent of all, a quarter more than a set's of 256
	}
	found := map[string]bool{}
	for _, c := range s.entries() {
		if c.least > small/large/2 {
			found[c.id] = true
		}
	}
	if len(found) != large || found["small-1"] {
		t.Errorf("%d are found, want %d: %v", len(found), large, maps.Keys(found))
	}
}

func TestWhatIsLongPastIsForgotten(t *testing.T) {
	s := newSketch(4)
	for range 100 {
		s.count("acme")
	}
	s.decay(1)
	if c := s.entries(); len(c) != 1 || c[0] != (sketchEntry{"acme", 50}) {
		t.Errorf("after one halving: %v, want 50", c)
	}
	s.put("acme", 10)
	if c := s.entries(); len(c) != 1 || c[0].least != 60 {
		t.Errorf("with 10 more: %v, want 60", c)
	}
	s.decay(6)
	if c := s.entries(); len(c) != 0 {
		t.Errorf("after seven halvings: %v, want none", c)
	}
}

func TestATenantThatIsPutIntoAFullSetTakesTheLeastBusysPlace(t *testing.T) {
	s := newSketch(0) // one set
	for i := range ways {
		for range i + 2 {
			s.count(strconv.Itoa(i))
		}
	}
	s.put("idle", 2)
	s.put("busy", 3)
	s.remove("7")
	got := map[string]uint64{}
	for _, c := range s.entries() {
		got[c.id] = c.least
	}
	assert.Equal(t, map[string]uint64{"busy": 3, "1": 3, "2": 4, "3": 5, "4": 6, "5": 7, "6": 8}, got, "known")
}
