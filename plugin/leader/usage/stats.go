package usage

import "time"

// Stats counts what a process has done as the leader. All numbers but Leading, Rows and UnpackedAt are of batches,
// hours and days.
type Stats struct {
	Leading bool  `json:"leader" metric:"usage_leader"`                                   // this process leads, or has
	Batches int64 `json:"batches" metric:"usage_unpacked_batches_total result=added"`     // added
	Rows    int64 `json:"rows"`                                                           // of minutes that these changed
	Again   int64 `json:"repeated" metric:"usage_unpacked_batches_total result=repeated"` // added before
	Gaps    int64 `json:"gaps" metric:"usage_unpacked_batches_total result=gap"`          // that did not come
	TooLate int64 `json:"too_late" metric:"usage_unpacked_batches_total result=too_late"` // older than the minutes kept
	Faulty  int64 `json:"faulty" metric:"usage_unpacked_batches_total result=faulty"`     // that were set aside
	Hours   int64 `json:"hours"`                                                          // summed up
	Days    int64 `json:"days"`                                                           // closed

	// UnpackedAt is when it had last unpacked all batches that were ready.
	UnpackedAt time.Time `json:"-" metric:"usage_unpacked_timestamp_seconds"`
}

// add adds what a transaction did, after its commit.
func (l *Leader) add(done Stats) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stats.Batches += done.Batches
	l.stats.Rows += done.Rows
	l.stats.Again += done.Again
	l.stats.Gaps += done.Gaps
	l.stats.TooLate += done.TooLate
	l.stats.Faulty += done.Faulty
	l.stats.Hours += done.Hours
	l.stats.Days += done.Days
}

// setLeading records whether this process leads, and logs a change.
func (l *Leader) setLeading(leads bool) {
	l.mu.Lock()
	before := l.stats.Leading
	l.stats.Leading = leads
	l.mu.Unlock()
	if leads != before {
		text := "this process unpacks the usage that nodes report, and tidies"
		if !leads {
			text = "this process has stopped unpacking the usage that nodes report"
		}
		l.options.Log.Info(text)
	}
}

// succeed records a round without an error.
func (l *Leader) succeed() {
	l.mu.Lock()
	l.stats.UnpackedAt = time.Now()
	l.mu.Unlock()
	l.fault.Record(nil)
}

// logRound logs what a transaction found wrong with batches.
func (l *Leader) logRound(done Stats, fault string) {
	if done.Gaps > 0 {
		l.options.Log.Warn("batches of usage did not come: what they counted is lost", "batches", done.Gaps)
	}
	if done.TooLate > 0 {
		l.options.Log.Warn("batches of usage came after the time for which minutes are kept, and were dropped",
			"batches", done.TooLate)
	}
	if done.Faulty > 0 {
		l.options.Log.Warn("batches of usage cannot be added: they are set aside in usage_batches",
			"batches", done.Faulty, "fault", fault)
	}
}
