package schema

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/docpath"
)

// Anchor moves the begin of a calendar limit's periods. The hour is for all of them; the other fields are for the
// periods that are longer than what they name.
type Anchor struct {
	// For quarter and year: the month in which a period begins, from 1 to 12. Quarters begin in it, and 3, 6 and 9 months
	// later. Default: 1, January.
	Month int64 `json:"month,omitempty" kong:"between=1..12"`

	// For month, quarter and year: the day of the month, from 1 to 31. In a shorter month it is the last day. Default: 1.
	Day int64 `json:"day,omitempty" kong:"between=1..31"`

	// For week: the day of the week. Default: monday.
	Weekday string `json:"weekday,omitempty" kong:"one_of=monday|tuesday|wednesday|thursday|friday|saturday|sunday"`

	// The hour at which a period begins, from 0 to 23. An hour that a change of the clock skips means the first instant
	// after it, one that it repeats the first of the two. Default: 0.
	Hour int64 `json:"hour,omitempty" kong:"between=0..23"`
}

// weekdays lists the values of Anchor.Weekday by their numbers. Monday is 1, and 0 is none.
var weekdays = [...]string{"", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"}

// anchorParts lists by period which fields an anchor may have.
var anchorParts = map[string][]string{
	PeriodDay:     {"hour"},
	PeriodWeek:    {"weekday", "hour"},
	PeriodMonth:   {"day", "hour"},
	PeriodQuarter: {"month", "day", "hour"},
	PeriodYear:    {"month", "day", "hour"},
}

// WeekdayNumber returns the number of a day of the week, from 1 for monday to 7; 0 for ""; -1: there is none of that
// name.
func WeekdayNumber(name string) int { return slices.Index(weekdays[:], name) }

// Weekday returns the name of a day of the week by its number, from 0 to 7; of 0 it is "".
func Weekday(number int) string { return weekdays[number] }

// Equal reports whether two anchors are the same; nil is the natural begin of a period.
func (a *Anchor) Equal(other *Anchor) bool {
	filled := func(a *Anchor) Anchor {
		a = cmp.Or(a, &Anchor{})
		return Anchor{cmp.Or(a.Month, 1), cmp.Or(a.Day, 1), cmp.Or(a.Weekday, weekdays[1]), a.Hour}
	}
	return filled(a) == filled(other)
}

// words returns where a period begins, after its time zone: ", from day 15 at 6:00", or ", from 6:00".
func (a *Anchor) words() string {
	if a == nil || *a == (Anchor{}) {
		return ""
	}
	words := ", from"
	if a.Weekday != "" {
		words += " " + a.Weekday
	}
	if a.Month != 0 {
		words += fmt.Sprint(" month ", a.Month)
	}
	if a.Day != 0 {
		words += fmt.Sprint(" day ", a.Day)
	}
	switch {
	case a.Hour != 0 && words == ", from":
		words += fmt.Sprintf(" %d:00", a.Hour)
	case a.Hour != 0:
		words += fmt.Sprintf(" at %d:00", a.Hour)
	}
	return words
}

// Window says what a limit counts over: WindowSize, or Period and what belongs to it, or MaxDuration. Answers have it.
type Window struct {
	WindowSize  int64   `json:"window_size,omitempty"  doc:"Seconds. Absent: the limit has a period of the calendar, or is one of concurrency."`
	Period      string  `json:"period,omitempty"       doc:"Of a limit that counts by the calendar." enum:"day,week,month,quarter,year"`
	TimeZone    string  `json:"time_zone,omitempty"    doc:"Where periods begin. Absent beside period: UTC." example:"Europe/Berlin"`
	Anchor      *Anchor `json:"anchor,omitempty"       doc:"Where in the calendar periods begin. Absent beside period: at the first midnight."`
	MaxDuration int64   `json:"max_duration,omitempty" doc:"Of concurrency: the seconds after which a request counts as ended."`
}

// Window returns what l counts over.
func (l Limit) Window() Window {
	return Window{l.WindowSize, l.Period, l.TimeZone, l.Anchor, l.MaxDuration}
}

// Capacity returns the most tokens that l holds at once, before thresholds: the burst of a bucket or its default, or
// the limit of a window.
func (l Limit) Capacity() int64 {
	switch l.Algorithm {
	case AlgorithmTokenBucket, "":
		if l.Burst > 0 {
			return l.Burst
		}
		return l.Limit
	case AlgorithmLeakyBucket:
		return max(l.Burst, 1)
	default:
		return l.Limit
	}
}

// SetWindow makes l count over w.
func (l *Limit) SetWindow(w Window) {
	l.WindowSize, l.MaxDuration = w.WindowSize, w.MaxDuration
	l.Period, l.TimeZone, l.Anchor = w.Period, w.TimeZone, w.Anchor
}

// Per returns w in words, after a number: "per 60 s", "per month (Europe/Berlin)" or "at once".
func (w Window) Per() string {
	switch {
	case w.Period != "":
		return "per " + w.Period + " (" + cmp.Or(w.TimeZone, "UTC") + w.Anchor.words() + ")"
	case w.MaxDuration != 0:
		return "at once"
	}
	return fmt.Sprintf("per %d s", w.WindowSize)
}

// periodSeconds lists the usual lengths of periods: 30 days for a month, and 365 for a year.
var periodSeconds = map[string]int64{
	PeriodDay: 86400, PeriodWeek: 7 * 86400, PeriodMonth: 30 * 86400, PeriodQuarter: 91 * 86400, PeriodYear: 365 * 86400,
}

// Seconds returns the length of w to compare it with others: of a period the usual one.
func (w Window) Seconds() int64 { return cmp.Or(w.WindowSize, periodSeconds[w.Period], w.MaxDuration) }

// Rate returns how much a limit allows, in words: "10000 per month (Europe/Berlin)", "10 at once".
func (l Limit) Rate() string { return Amount(l.Limit, l.Unit) + " " + l.Window().Per() }

// anchorFaults returns the faults of an anchor beside its period. In Kong's schema language they would be conditions on
// a record that most limits lack.
func (l LocatedLimit) anchorFaults() []Fault {
	if l.Anchor == nil {
		return nil
	}
	var faults findings
	path := docpath.Member(l.Path, "anchor")
	parts, known := anchorParts[l.Period]
	if l.Period == "" {
		faults.add(path, "needs period beside it, because only periods of the calendar have a begin to move")
	}
	given := map[string]bool{"month": l.Anchor.Month != 0, "day": l.Anchor.Day != 0, "weekday": l.Anchor.Weekday != ""}
	for _, name := range [...]string{"month", "day", "weekday"} {
		if known && given[name] && !slices.Contains(parts, name) {
			faults.add(docpath.Member(path, name), "must be left out with period %s, whose anchor may have %s",
				l.Period, strings.Join(parts, ", "))
		}
	}
	return faults
}
