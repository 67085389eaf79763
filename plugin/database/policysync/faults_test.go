package policysync

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

func wrong(key, problem string) policy.Fault {
	return policy.Fault{Table: "policies", Key: key, Field: "limit", Problem: problem}
}

func rowsOf(names ...string) map[rowKey]bool {
	set := map[rowKey]bool{}
	for _, name := range names {
		set[rowKey{"policies", name}] = true
	}
	return set
}

func TestFaultsOfRowsThatWereNotFetchedStay(t *testing.T) {
	var f faultSet
	f.replace([]policy.Fault{wrong("1", "a"), wrong("2", "b"), wrong("3", "c")}, nil, nil)
	fresh := f.replace([]policy.Fault{wrong("2", "b"), wrong("4", "d")}, rowsOf("1", "2", "4"), rowsOf("4"))
	want := fmt.Sprint([]policy.Fault{wrong("3", "c"), wrong("2", "b"), wrong("4", "d")}, 3)
	assert.Equal(t, want, fmt.Sprint(f.list, f.count), "the faults")
	if len(fresh) != 1 || fresh[0].Key != "4" {
		t.Errorf("%v are new, want that of 4: 2 was wrong before, and has not changed", fresh)
	}
	fresh = f.replace([]policy.Fault{wrong("2", "b")}, rowsOf("2"), rowsOf("2"))
	assert.Len(t, fresh, 1, "are new")
}

func TestAllFaultsAreCountedAndTheFirstOnesKept(t *testing.T) {
	var f faultSet
	many := make([]policy.Fault, 5000)
	for i := range many {
		many[i] = wrong(fmt.Sprint(i), "a")
	}
	if fresh := f.replace(many, nil, nil); len(f.list) != maxFaults || f.count != 5000 || len(fresh) != maxFaults {
		t.Errorf("%d of %d are kept, %d are new", len(f.list), f.count, len(fresh))
	}
	assert.EqualValues(t, maxReported, len(f.retryKeys()), "rows are fetched again with every change")
	f.replace(nil, rowsOf("0", "1"), rowsOf("0"))
	if len(f.list) != maxFaults-2 || f.count != 4998 {
		t.Errorf("after two are right %d of %d are kept, want %d of 4998", len(f.list), f.count, maxFaults-2)
	}
	if f.replace(nil, nil, nil); f.count != 0 || len(f.list) != 0 {
		t.Errorf("after all are right there are %d", f.count)
	}
}
