package redis

import "sync"

// Values begin with the version of their form. A node reads the forms from oldest to newest, and writes one that every
// live node reads: each heartbeat has the newest form that its node reads, and returns the oldest of those. So a later
// version can be installed on half of the nodes, and removed again, without a bucket that some node cannot read.
const (
	// format is the version of the form that this code reads and writes.
	format = 2
	// oldestFormat is written before the first heartbeat has returned what the others read.
	oldestFormat = 2
)

// formats decides which form is written, for each namespace. The zero value writes the oldest.
type formats struct {
	mu    sync.RWMutex
	reads map[string]int // by namespace: the newest form that all live nodes read
}

// recordReadable records what the live nodes of a namespace read, this one included.
func (f *formats) recordReadable(namespace string, all int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.reads == nil {
		f.reads = map[string]int{}
	}
	f.reads[namespace] = all
}

// writable returns the form that may be written to a namespace by a node that can write all up to newest. A nil formats
// returns the oldest.
func (f *formats) writable(namespace string, newest int) int {
	if f == nil || newest == oldestFormat {
		return oldestFormat
	}
	f.mu.RLock()
	defer f.mu.RUnlock()
	return max(min(f.reads[namespace], newest), oldestFormat)
}

// firstByte returns the byte that all strings of a subject of a namespace begin with.
func (f *formats) firstByte(namespace string, level int) byte {
	return byte(f.writable(namespace, format))<<4 | byte(level)
}
