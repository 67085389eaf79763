package policysync

import (
	"slices"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

const (
	// maxFaults is the number of faults that are kept; others are only counted.
	maxFaults = 1000
	// maxLogged is the number of faults that one swap logs; maxReported is the number of rows with faults in a report.
	maxLogged, maxReported = 20, 100
)

// faultSet holds the faults of the rows that the snapshot was made from. Lists are immutable: Stats shares them.
type faultSet struct {
	list  []policy.Fault
	count int // of all faults, also those that do not fit in list
}

func keyOf(f policy.Fault) rowKey { return rowKey{f.Table, f.Key} }

// retryKeys returns rows with faults, at most maxReported, to be compiled again with the next change. That change may
// repair them: their fault may be another row, such as one with an ambiguous pattern.
func (f *faultSet) retryKeys() []rowKey {
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

// replaceAll replaces the faults with those found in all rows, and returns the new ones.
func (f *faultSet) replaceAll(found []policy.Fault) (fresh []policy.Fault) {
	before := make(map[policy.Fault]bool, len(f.list))
	for _, fault := range f.list {
		before[fault] = true
	}
	kept := found[:min(len(found), maxFaults)]
	for _, fault := range kept {
		if !before[fault] {
			fresh = append(fresh, fault)
		}
	}
	f.list, f.count = slices.Clone(kept), len(found)
	return fresh
}

// replaceSome replaces the faults of the fetched rows. It returns the new faults, and all of rows that have changed.
func (f *faultSet) replaceSome(found []policy.Fault, fetched, changed map[rowKey]bool) (fresh []policy.Fault) {
	var list []policy.Fault
	before := map[policy.Fault]bool{}
	for _, fault := range f.list {
		if fetched[keyOf(fault)] {
			before[fault] = true
		} else {
			list = append(list, fault)
		}
	}
	for _, fault := range found {
		if !before[fault] || changed[keyOf(fault)] {
			fresh = append(fresh, fault)
		}
	}
	unlisted := f.count - len(f.list) // of unnamed rows, until all are loaded again
	list = append(list, found...)
	f.count = len(list) + unlisted
	f.list = list[:min(len(list), maxFaults)]
	return fresh
}

// logFaults logs new faults of rows.
func (s *Sync) logFaults(fresh []policy.Fault, version int64) {
	for _, f := range fresh[:min(len(fresh), maxLogged)] {
		s.log.Warn("a row does not compile: its last good value, if any, stays in force",
			"table", f.Table, "key", f.Key, "field", f.Field, "problem", f.Problem, "version", version)
	}
	if more := len(fresh) - maxLogged; more > 0 {
		s.log.Warn("more rows do not compile", "rows", more, "version", version)
	}
}
