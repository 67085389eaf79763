package policy

import (
	"cmp"
	"slices"
)

// hasID is a row with an id.
type hasID interface {
	comparable
	rowID() int64
}

// index maps ids to rows. Snapshots share its parts: a change copies one.
type index[R hasID] struct {
	rows  int
	parts [shardCount][]R // by id, sorted
}

func (x *index[R]) part(id int64) *[]R { return &x.parts[uint64(id)%shardCount] }

func searchID[R hasID](part []R, id int64) (int, bool) {
	return slices.BinarySearchFunc(part, id, func(r R, id int64) int { return cmp.Compare(r.rowID(), id) })
}

func (x *index[R]) get(id int64) (r R, ok bool) {
	part := *x.part(id)
	i, ok := searchID(part, id)
	if ok {
		r = part[i]
	}
	return r, ok
}

// insert adds a row with a new id. It copies the part first unless own is set.
func (x *index[R]) insert(r R, own bool) {
	part := x.part(r.rowID())
	i, _ := searchID(*part, r.rowID())
	if !own {
		*part = append(make([]R, 0, len(*part)+1), *part...)
	}
	*part = slices.Insert(*part, i, r)
	x.rows++
}

// remove drops a row, copying its part.
func (x *index[R]) remove(id int64) {
	part := x.part(id)
	i, ok := searchID(*part, id)
	if !ok {
		return
	}
	*part = slices.Concat((*part)[:i], (*part)[i+1:])
	x.rows--
}
