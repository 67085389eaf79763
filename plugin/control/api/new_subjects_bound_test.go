package api

import "testing"

func TestTheMemoryOfSubjectsIsBoundedAndKeepsTheLastOnes(t *testing.T) {
	const most = 100
	r := recent[int]{most: most}
	for i := range 10 * most {
		r.put(i)
		r.put(7)
		if size := len(r.young) + len(r.old); size > most {
			t.Fatalf("%d entries are remembered, want at most %d", size, most)
		}
		for j := max(i-most/2+2, 8); j <= i; j++ {
			if !r.has(j) {
				t.Fatalf("%d is forgotten after %d", j, i)
			}
		}
	}
	if r.has(8) {
		t.Error("the first entries are remembered")
	}
	if !r.has(7) {
		t.Error("an entry that is put again is forgotten")
	}
}
