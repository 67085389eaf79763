package named

import (
	"container/heap"
	"slices"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
)

// deadlines holds keys in the order of their deadlines. The zero value is empty. It is not safe for concurrent use.
type deadlines struct {
	byKey map[string]*deadline
	next  deadlineHeap
}

type deadline struct {
	key   string
	at    limit.Micros
	place int // in the heap
}

func (d *deadlines) size() int { return len(d.next) }

// add adds a key, or changes its deadline.
func (d *deadlines) add(key string, at limit.Micros) {
	d.remove(key)
	if d.byKey == nil {
		d.byKey = map[string]*deadline{}
	}
	added := &deadline{key: key, at: at}
	d.byKey[key] = added
	heap.Push(&d.next, added)
}

// remove removes a key, if it is there.
func (d *deadlines) remove(key string) {
	if removed := d.byKey[key]; removed != nil {
		delete(d.byKey, key)
		heap.Remove(&d.next, removed.place)
	}
}

// due returns the key whose deadline is the first, if that has passed.
func (d *deadlines) due(now limit.Micros) (key string, ok bool) {
	if len(d.next) == 0 || d.next[0].at > now {
		return "", false
	}
	return d.next[0].key, true
}

// deadlineHeap is a heap, the first deadline at its top.
type deadlineHeap []*deadline

func (h deadlineHeap) Len() int           { return len(h) }
func (h deadlineHeap) Less(i, j int) bool { return h[i].at < h[j].at }
func (h deadlineHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = i, j
}

// Push implements heap.Interface.
func (h *deadlineHeap) Push(x any) {
	d := x.(*deadline)
	d.place = len(*h)
	*h = append(*h, d)
}

// Pop implements heap.Interface.
func (h *deadlineHeap) Pop() any {
	last := len(*h) - 1
	d := (*h)[last]
	*h = slices.Delete(*h, last, last+1)
	return d
}
