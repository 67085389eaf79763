package quota

import (
	"strconv"
	"time"
)

// Stats counts what a watcher has done as the leader.
type Stats struct {
	Notices   map[string]int64 `metric:"quota_notices_total threshold"` // that it wrote
	CheckedAt time.Time        `metric:"quota_checked_timestamp_seconds"`
}

// Stats returns what the watcher has done.
func (w *Watcher) Stats() Stats {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := Stats{map[string]int64{}, w.checkedAt}
	for _, threshold := range Thresholds {
		s.Notices[strconv.FormatInt(threshold, 10)] = w.written[threshold]
	}
	return s
}

// finish counts a check that was committed, and logs when buckets cannot be read, and when they can again.
func (w *Watcher) finish(c *check) {
	w.mu.Lock()
	for i := range c.notices {
		w.written[c.notices[i].Threshold]++
	}
	if c.unread == nil {
		w.checkedAt = time.Now()
	}
	w.mu.Unlock()
	w.unread.Record(c.unread)
}
