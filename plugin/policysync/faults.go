package policysync

import (
	"slices"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
)

const (
	// maxFaults is how many faults are kept in words; the others are counted.
	maxFaults = 1000
	// maxLogged is how many faults one swap logs in words, and maxReported how many rows' the node's report has.
	maxLogged, maxReported = 20, 100
)

// faults are what is wrong with the rows that the snapshot was made from. Lists are never changed: Stats shares them.
type faults struct {
	list  []policy.Fault
	count int // also those that list has no room for
}

func keyOf(f policy.Fault) rowKey { return rowKey{f.Table, f.Key} }

// again are the rows that are to be looked at with the next change, whatever that is: what is wrong with them may have
// been another row, such as a pattern that theirs is ambiguous with. They are not more than a change may take along.
func (f *faults) again() []rowKey {
	var keys []rowKey
	for _, fault := range f.list {
		if key := keyOf(fault); len(keys) == 0 || keys[len(keys)-1] != key {
			keys = append(keys, key)
		}
		if len(keys) == maxReported {
			break
		}
	}
	return keys
}

// all puts what was found in all rows in the place of what was known. It tells what was not known.
func (f *faults) all(found []policy.Fault) (fresh []policy.Fault) {
	known := make(map[policy.Fault]bool, len(f.list))
	for _, fault := range f.list {
		known[fault] = true
	}
	kept := found[:min(len(found), maxFaults)]
	for _, fault := range kept {
		if !known[fault] {
			fresh = append(fresh, fault)
		}
	}
	f.list, f.count = slices.Clone(kept), len(found)
	return fresh
}

// some puts what was found in the rows that were looked at in the place of what was known of them. It tells what was
// not known, and whatever is wrong with a row that has changed.
func (f *faults) some(found []policy.Fault, looked, changed map[rowKey]bool) (fresh []policy.Fault) {
	var list []policy.Fault
	known := map[policy.Fault]bool{}
	for _, fault := range f.list {
		if looked[keyOf(fault)] {
			known[fault] = true
		} else {
			list = append(list, fault)
		}
	}
	for _, fault := range found {
		if !known[fault] || changed[keyOf(fault)] {
			fresh = append(fresh, fault)
		}
	}
	unlisted := f.count - len(f.list) // nobody knows which rows these are until all are loaded again
	list = append(list, found...)
	f.count = len(list) + unlisted
	f.list = list[:min(len(list), maxFaults)]
	return fresh
}

// logFaults tells what is newly wrong with rows.
func (s *Sync) logFaults(fresh []policy.Fault, version int64) {
	for _, f := range fresh[:min(len(fresh), maxLogged)] {
		s.log.Warn("a row does not compile: its last good value, if any, stays in force",
			"table", f.Table, "key", f.Key, "field", f.Field, "problem", f.Problem, "version", version)
	}
	if more := len(fresh) - maxLogged; more > 0 {
		s.log.Warn("more rows do not compile", "rows", more, "version", version)
	}
}
