// Package calendar divides time into the days, weeks, months, quarters and years of a time zone.
//
// A period begins when the zone's clocks first show its start: midnight of a date, or the hour of an [Anchor]. Where
// clocks skip that time, the period begins with the first later time that they show. Where they show it twice, the
// first time counts. A date that a zone skips has no period of its own: the one before lasts until the next date. So
// periods tile time: they have no gap, no overlap, and none is empty.
//
// The zone data is embedded, so every node that runs one version of the program divides time alike. Nothing here reads
// a clock: instants are arguments, in microseconds since the Unix epoch.
package calendar

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Period is the unit by which a calendar counts. The zero value is none.
type Period uint8

// The periods.
const (
	Day Period = iota + 1
	Week
	Month
	Quarter
	Year
)

var periodNames = [...]string{"", "day", "week", "month", "quarter", "year"}

func (p Period) String() string {
	if int(p) < len(periodNames) {
		return periodNames[p]
	}
	return fmt.Sprintf("period(%d)", uint8(p))
}

// ParsePeriod returns the period of a name; it is the inverse of [Period.String]. The error lists the names.
func ParsePeriod(name string) (Period, error) {
	if i := slices.Index(periodNames[1:], name); i >= 0 {
		return Period(i + 1), nil
	}
	return 0, fmt.Errorf("unknown period %q: use day, week, month, quarter or year", name)
}

// months returns the length of a period that consists of months.
func (p Period) months() int {
	switch p {
	case Month:
		return 1
	case Quarter:
		return 3
	default:
		return 12
	}
}

// Anchor says where in its unit a period starts. The zero value is the natural start: midnight, a Monday, the first of
// the month, January.
type Anchor struct {
	// The quarters of month 2 start in February, May, August and November.
	Month   int `json:"month,omitempty"`   // of a quarter or year: 1 to 12; 0 = 1
	Day     int `json:"day,omitempty"`     // of a month, quarter or year: 1 to 31; 0 = 1; a shorter month's last day
	Weekday int `json:"weekday,omitempty"` // of a week: 1 (Monday) to 7 (Sunday); 0 = 1
	Hour    int `json:"hour,omitempty"`    // 0 to 23
}

// FieldError reports one field of a calendar that is out of range.
type FieldError struct {
	Field   string // as the configuration names it: period, anchor.day, window_size, …
	Problem string // what is wrong, and what would be right
}

func (e *FieldError) Error() string { return e.Field + ": " + e.Problem }

// Calendar is a period of a time zone. It is immutable. [New] returns the same Calendar for the same arguments, so ==
// compares definitions.
type Calendar struct {
	of       definition
	location *time.Location
	hash     uint64
	last     atomic.Pointer[Bounds] // what was returned last
}

// definition is also how a calendar is written as JSON.
type definition struct {
	Period Period `json:"period"`
	Anchor Anchor `json:"anchor,omitzero"`
	Zone   string `json:"time_zone"`
}

// calendars holds the *Calendar of each definition.
var calendars sync.Map

// New returns the calendar of a period. An empty zone is UTC. The error joins one *FieldError for each field that is
// out of range.
func New(period Period, anchor Anchor, zone string) (*Calendar, error) {
	if zone == "" {
		zone = "UTC"
	}
	d := definition{period, anchor.normalize(), zone}
	if known, ok := calendars.Load(d); ok {
		return known.(*Calendar), nil
	}
	errs := d.check()
	location, err := Location(zone)
	if err != nil {
		errs = append(errs, err)
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	hash := fnv.New64a()
	fmt.Fprintln(hash, d.Period, d.Anchor, d.Zone)
	made, _ := calendars.LoadOrStore(d, &Calendar{of: d, location: location, hash: hash.Sum64()})
	return made.(*Calendar), nil
}

// normalize replaces natural starts that are written out by zeros, so that equal anchors are equal values.
func (a Anchor) normalize() Anchor {
	for _, field := range []*int{&a.Month, &a.Day, &a.Weekday} {
		if *field == 1 {
			*field = 0
		}
	}
	return a
}

func (d *definition) check() (errs []error) {
	if d.Period < Day || d.Period > Year {
		return []error{&FieldError{"period", "must be day, week, month, quarter or year"}}
	}
	check := func(field string, value, least, most int, periods ...Period) {
		switch {
		case value == 0:
		case !slices.Contains(periods, d.Period):
			errs = append(errs, &FieldError{field, fmt.Sprintf("a %s has none", d.Period)})
		case value < least || value > most:
			errs = append(errs, &FieldError{field, fmt.Sprintf("must be between %d and %d, got %d", least, most, value)})
		}
	}
	check("anchor.month", d.Anchor.Month, 1, 12, Quarter, Year)
	check("anchor.day", d.Anchor.Day, 1, 31, Month, Quarter, Year)
	check("anchor.weekday", d.Anchor.Weekday, 1, 7, Week)
	check("anchor.hour", d.Anchor.Hour, 0, 23, Day, Week, Month, Quarter, Year)
	return errs
}

// Period returns the unit by which c counts.
func (c *Calendar) Period() Period { return c.of.Period }

// Anchor returns where in the unit c's periods start. Natural starts are 0.
func (c *Calendar) Anchor() Anchor { return c.of.Anchor }

// Zone returns the IANA name of c's time zone.
func (c *Calendar) Zone() string { return c.of.Zone }

// Location returns c's time zone.
func (c *Calendar) Location() *time.Location { return c.location }

// Hash identifies the definition: period, anchor and name of the zone. It does not depend on the zone data.
func (c *Calendar) Hash() uint64 { return c.hash }

// In returns the same period in another zone. The error is a *FieldError, of an unknown zone.
func (c *Calendar) In(zone string) (*Calendar, error) { return New(c.of.Period, c.of.Anchor, zone) }

// String returns what a text says behind "per": month (Europe/Berlin).
func (c *Calendar) String() string { return c.of.Period.String() + " (" + c.of.Zone + ")" }

// MarshalJSON implements json.Marshaler.
func (c *Calendar) MarshalJSON() ([]byte, error) { return json.Marshal(c.of) }

// UnmarshalJSON implements json.Unmarshaler. What it makes equals none that [New] returns: use [Calendar.In].
func (c *Calendar) UnmarshalJSON(text []byte) error {
	var d definition
	if err := json.Unmarshal(text, &d); err != nil {
		return err
	}
	known, err := New(d.Period, d.Anchor, d.Zone)
	if err == nil {
		c.of, c.location, c.hash = known.of, known.location, known.hash
	}
	return err
}

// slack is by how much clocks that are set can lengthen a period. No zone has set them back by more since 1970.
const slack = 3 * time.Hour

// Longest returns the longest length of c's periods, in microseconds. It depends on the period alone.
func (c *Calendar) Longest() int64 {
	days := [...]time.Duration{Day: 1, Week: 7, Month: 31, Quarter: 92, Year: 366}
	return (days[c.of.Period]*24*time.Hour + slack).Microseconds()
}

// Bounds has the period that contains an instant and its two neighbours: the one before ends where the period starts,
// and the one after starts where it ends. All are microseconds since the Unix epoch, in whole seconds. Time begins at
// the epoch: the period that contains it starts there.
type Bounds struct {
	Before int64 // start of the period before; Start where there is none
	Start  int64
	End    int64
	After  int64 // end of the period after
}

// Window returns the start and the end of the period that contains an instant, which must not be before the epoch.
func (c *Calendar) Window(at int64) (start, end int64) {
	b := c.Bounds(at)
	return b.Start, b.End
}

// Bounds returns the bounds around an instant, which must not be before the epoch. It does not allocate while the
// instant is in the period that was asked for last.
func (c *Calendar) Bounds(at int64) *Bounds {
	if b := c.last.Load(); b != nil && b.Start <= at && at < b.End {
		return b
	}
	b := &Bounds{}
	b.Start, b.End = c.find(at)
	_, b.After = c.find(b.End)
	b.Before = b.Start
	if b.Start > 0 {
		b.Before, _ = c.find(b.Start - 1)
	}
	c.last.Store(b)
	return b
}

// find computes the period that contains an instant.
func (c *Calendar) find(at int64) (start, end int64) {
	shown := time.UnixMicro(at).In(c.location)
	n := c.number(time.Date(shown.Year(), shown.Month(), shown.Day(), shown.Hour(), 0, 0, 0, time.UTC))
	start, end = c.first(n), c.first(n+1)
	for end <= at { // clocks were set back over a start, or skip one
		n++
		start, end = end, c.first(n+1)
	}
	return max(start, 0), end
}

// number returns the number of the last period whose start a clock that shows this time has passed.
func (c *Calendar) number(shown time.Time) int {
	var n int
	switch c.of.Period {
	case Day:
		n = dayOf(shown)
	case Week:
		n = (dayOf(shown) - 4 - max(c.of.Anchor.Weekday-1, 0)) / 7 // 5 January 1970 was a Monday
	default:
		n = (shown.Year()*12 + int(shown.Month()) - 1) / c.of.Period.months()
	}
	n++
	for c.start(n).After(shown) {
		n--
	}
	return n
}

// start returns what clocks show at the start of a period, as if they showed UTC.
func (c *Calendar) start(n int) time.Time {
	switch c.of.Period {
	case Day:
		return time.Date(1970, 1, 1+n, c.of.Anchor.Hour, 0, 0, 0, time.UTC)
	case Week:
		return time.Date(1970, 1, 5+7*n+max(c.of.Anchor.Weekday-1, 0), c.of.Anchor.Hour, 0, 0, 0, time.UTC)
	}
	months := n*c.of.Period.months() + max(c.of.Anchor.Month-1, 0)%c.of.Period.months()
	year, month := months/12, time.Month(months%12+1)
	last := time.Date(year, month+1, 0, 0, 0, 0, 0, time.UTC).Day()
	return time.Date(year, month, min(max(c.of.Anchor.Day, 1), last), c.of.Anchor.Hour, 0, 0, 0, time.UTC)
}

func dayOf(t time.Time) int { return int(t.Unix() / 86400) }

// first returns the first instant at which the zone's clocks show the start of a period or a later time. It searches
// the stretches between changes of the offset, because a time may be skipped or shown twice.
func (c *Calendar) first(n int) int64 {
	wanted := c.start(n).Unix()
	at := wanted - 24*3600 // no clock is ahead of UTC by so much
	for {
		stretch := time.Unix(at, 0).In(c.location)
		_, offset := stretch.Zone()
		_, bound := stretch.ZoneBounds()
		until := int64(math.MaxInt64)
		if !bound.IsZero() {
			until = max(bound.Unix(), at+3600) // on the last day of a leap year Go's bound has passed
		}
		if at = max(at, wanted-int64(offset)); at < until {
			return at * 1e6
		}
		at = until
	}
}
