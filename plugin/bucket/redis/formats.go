package redis

import "sync"

// Values begin with the version of their form. A node reads the forms from oldest to newest, and writes one that every
// live node reads: each heartbeat says the newest form that its node reads, and is answered the oldest of those. So a
// later version can come to half of the nodes, and be gone again, without a bucket that somebody cannot read.
const (
	// format is the version of the form that this code reads and writes.
	format = 2
	// oldestFormat is what is written while nobody has said what the others read.
	oldestFormat = 2
)

// formats decide the form of what is written, for each namespace. The zero value writes the oldest.
type formats struct {
	mu    sync.RWMutex
	reads map[string]int // by namespace: the newest form that all live nodes read
}

// heard records what the live nodes of a namespace read, this one included.
func (f *formats) heard(namespace string, all int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.reads == nil {
		f.reads = map[string]int{}
	}
	f.reads[namespace] = all
}

// writes returns the form that may be written to a namespace by a node that can write all up to newest. A nil formats
// has heard nothing.
func (f *formats) writes(namespace string, newest int) int {
	if f == nil || newest == oldestFormat {
		return oldestFormat
	}
	f.mu.RLock()
	defer f.mu.RUnlock()
	return max(min(f.reads[namespace], newest), oldestFormat)
}

// begins returns the byte that all strings of a subject of a namespace begin with.
func (f *formats) begins(namespace string, level int) byte {
	return byte(f.writes(namespace, format))<<4 | byte(level)
}
