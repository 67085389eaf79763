package api

import "testing"

func TestTheMemoryOfSubjectsIsBoundedAndKeepsTheLastOnes(t *testing.T) {
	const most = 100
	r := recent[int, int]{most: most}
	for i := range 10 * most {
		r.put(i, -i)
		r.put(7, 7)
		if size := len(r.young) + len(r.old); size > most {
			t.Fatalf("%d entries are remembered, want at most %d", size, most)
		}
		for j := max(i-most/2+2, 8); j <= i; j++ {
			if value, ok := r.get(j); !ok || value != -j {
				t.Fatalf("%d is forgotten after %d", j, i)
			}
		}
	}
	if _, ok := r.get(8); ok {
		t.Error("the first entries are remembered")
	}
	if _, ok := r.get(7); !ok {
		t.Error("an entry that is put again is forgotten")
	}
}
