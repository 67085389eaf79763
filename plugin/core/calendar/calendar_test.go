package calendar

import (
	"encoding/json"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func drawCalendar(t *rapid.T) *Calendar {
	period := Period(rapid.IntRange(1, 5).Draw(t, "period"))
	anchor := Anchor{Hour: rapid.SampledFrom([]int{0, 0, 1, 2, 3, 23, 12}).Draw(t, "hour")}
	switch period {
	case Week:
		anchor.Weekday = rapid.IntRange(0, 7).Draw(t, "weekday")
	case Quarter, Year:
		anchor.Month = rapid.IntRange(0, 12).Draw(t, "month")
		fallthrough
	case Month:
		anchor.Day = rapid.IntRange(0, 31).Draw(t, "day")
	}
	c, err := New(period, anchor, rapid.SampledFrom(Zones()).Draw(t, "zone"))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestPeriodsTileTime(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := drawCalendar(t)
		at := rapid.Int64Range(0, 1<<52).Draw(t, "at")
		if rapid.Bool().Draw(t, "soon") {
			at %= 100 * 366 * 86400 * 1e6
		}
		b := *c.Bounds(at)
		if b.Start > at || at >= b.End || b.Before > b.Start || b.End >= b.After || b.Before == b.Start && b.Start > 0 {
			t.Fatalf("%v: the bounds around %d are %+v", c, at, b)
		}
		if b.Start%1e6 != 0 || b.End%1e6 != 0 || b.End-b.Start > c.Longest() {
			t.Fatalf("%v: %+v is not in whole seconds, or longer than %d", c, b, c.Longest())
		}
		inside := rapid.Int64Range(b.Start, b.End-1).Draw(t, "inside")
		for _, one := range []struct{ at, start, end int64 }{
			{b.Start, b.Start, b.End}, {inside, b.Start, b.End}, {b.End - 1, b.Start, b.End}, {b.End, b.End, b.After},
		} {
			if start, end := c.Window(one.at); start != one.start || end != one.end {
				t.Fatalf("%v: %d is in [%d, %d), but near it in [%d, %d)", c, one.at, start, end, one.start, one.end)
			}
		}
		if b.Start > 0 {
			if start, end := c.Window(b.Start - 1); start != b.Before || end != b.Start {
				t.Fatalf("%v: the period before %d is [%d, %d), not from %d", c, b.Start, start, end, b.Before)
			}
		}
	})
}

func TestAPeriodStartsWhereItsZoneSaysSo(t *testing.T) {
	for _, one := range []struct {
		period           Period
		anchor           Anchor
		zone             string
		at, start, until string
	}{
		{Day, Anchor{}, "", "2026-05-05T12:00:00Z", "2026-05-05T00:00:00Z", "2026-05-06T00:00:00Z"},
		// The clocks skip midnight.
		{Day, Anchor{}, "America/Sao_Paulo", "2018-11-04T12:00:00Z", "2018-11-04T03:00:00Z", "2018-11-05T02:00:00Z"},
		{Day, Anchor{}, "Asia/Beirut", "2024-03-31T12:00:00Z", "2024-03-30T22:00:00Z", "2024-03-31T21:00:00Z"},
		// They show midnight twice.
		{Day, Anchor{}, "America/Havana", "2024-11-03T12:00:00Z", "2024-11-03T04:00:00Z", "2024-11-04T05:00:00Z"},
		{Day, Anchor{}, "America/Havana", "2024-11-03T05:30:00Z", "2024-11-03T04:00:00Z", "2024-11-04T05:00:00Z"},
		// They show the anchored hour twice, or not at all.
		{Day, Anchor{Hour: 2}, "Europe/Berlin", "2026-10-25T01:30:00Z", "2026-10-25T00:00:00Z", "2026-10-26T01:00:00Z"},
		{Day, Anchor{Hour: 2}, "Europe/Berlin", "2026-03-29T01:30:00Z", "2026-03-29T01:00:00Z", "2026-03-30T00:00:00Z"},
		// The zone skips a date.
		{Day, Anchor{}, "Pacific/Apia", "2011-12-30T09:00:00Z", "2011-12-29T10:00:00Z", "2011-12-30T10:00:00Z"},
		{Day, Anchor{}, "Pacific/Apia", "2011-12-30T10:00:00Z", "2011-12-30T10:00:00Z", "2011-12-31T10:00:00Z"},
		{Month, Anchor{Day: 30}, "Pacific/Apia", "2011-12-31T00:00:00Z", "2011-12-30T10:00:00Z", "2012-01-29T10:00:00Z"},
		{Day, Anchor{}, "Australia/Lord_Howe", "2026-10-04T12:00:00Z", "2026-10-03T13:30:00Z", "2026-10-04T13:00:00Z"},
		{Week, Anchor{}, "Asia/Kathmandu", "2026-11-29T12:00:00Z", "2026-11-22T18:15:00Z", "2026-11-29T18:15:00Z"},
		{Week, Anchor{Weekday: 7, Hour: 6}, "", "2026-11-29T05:59:59Z", "2026-11-22T06:00:00Z", "2026-11-29T06:00:00Z"},
		{Month, Anchor{}, "Europe/Berlin", "2026-10-31T22:59:59Z", "2026-09-30T22:00:00Z", "2026-10-31T23:00:00Z"},
		{Month, Anchor{Day: 31}, "", "2024-03-01T00:00:00Z", "2024-02-29T00:00:00Z", "2024-03-31T00:00:00Z"},
		{Quarter, Anchor{Month: 2}, "", "2026-01-31T00:00:00Z", "2025-11-01T00:00:00Z", "2026-02-01T00:00:00Z"},
		{Quarter, Anchor{Month: 11, Day: 15}, "", "2026-11-14T00:00:00Z", "2026-08-15T00:00:00Z", "2026-11-15T00:00:00Z"},
		{Year, Anchor{Month: 2, Day: 29}, "", "2024-02-28T00:00:00Z", "2023-02-28T00:00:00Z", "2024-02-29T00:00:00Z"},
		{Year, Anchor{Month: 4}, "Europe/London", "2026-11-29T00:00:00Z", "2026-03-31T23:00:00Z", "2027-03-31T23:00:00Z"},
		{Year, Anchor{}, "Europe/Berlin", "1970-01-01T00:00:00Z", "1970-01-01T00:00:00Z", "1970-12-31T23:00:00Z"},
	} {
		c, err := New(one.period, one.anchor, one.zone)
		if err != nil {
			t.Fatal(err)
		}
		at, err := time.Parse(time.RFC3339, one.at)
		if err != nil {
			t.Fatal(err)
		}
		start, end := c.Window(at.UnixMicro())
		from, until := time.UnixMicro(start).UTC().Format(time.RFC3339), time.UnixMicro(end).UTC().Format(time.RFC3339)
		if from != one.start || until != one.until {
			t.Errorf("%v %+v: %s is in [%s, %s), not in [%s, %s)", c, one.anchor, one.at, from, until, one.start, one.until)
		}
	}
}

func TestACalendarOutOfRangeNamesItsFields(t *testing.T) {
	for _, one := range []struct {
		period Period
		anchor Anchor
		zone   string
		want   string
	}{
		{0, Anchor{}, "", "period: must be day, week, month, quarter or year"},
		{Day, Anchor{Day: 3}, "", "anchor.day: a day has none"},
		{Month, Anchor{Day: 32}, "", "anchor.day: must be between 1 and 31, got 32"},
		{Month, Anchor{Weekday: 2}, "", "anchor.weekday: a month has none"},
		{Week, Anchor{Weekday: 8}, "", "anchor.weekday: must be between 1 and 7, got 8"},
		{Year, Anchor{Month: 13, Hour: 24}, "",
			"anchor.month: must be between 1 and 12, got 13\nanchor.hour: must be between 0 and 23, got 24"},
		{Day, Anchor{Hour: -1}, "", "anchor.hour: must be between 0 and 23, got -1"},
		{Day, Anchor{}, "Europe/Bonn", `time_zone: unknown time zone "Europe/Bonn": use an IANA name such as ` +
			"Europe/Berlin (zone data " + DataVersion + ")"},
		{Day, Anchor{}, "America", `time_zone: unknown time zone "America": use an IANA name such as ` +
			"Europe/Berlin (zone data " + DataVersion + ")"},
		{Day, Anchor{}, "Local", `time_zone: unknown time zone "Local": use an IANA name such as ` +
			"Europe/Berlin (zone data " + DataVersion + ")"},
	} {
		if _, err := New(one.period, one.anchor, one.zone); err == nil || err.Error() != one.want {
			t.Errorf("%v %+v %q: %v, not %s", one.period, one.anchor, one.zone, err, one.want)
		}
	}
}

func TestEqualDefinitionsAreOneCalendar(t *testing.T) {
	one, _ := New(Month, Anchor{Day: 1}, "UTC")
	other, _ := New(Month, Anchor{}, "")
	berlin, _ := New(Month, Anchor{}, "Europe/Berlin")
	if one != other || one == berlin || one.Hash() == berlin.Hash() {
		t.Errorf("%p and %p are one calendar, and %p is another", one, other, berlin)
	}
	if again, err := berlin.In("UTC"); err != nil || again != one {
		t.Errorf("%v in UTC is %v: %v", berlin, again, err)
	}
	if berlin.String() != "month (Europe/Berlin)" {
		t.Error(berlin)
	}
}

func TestACalendarIsReadAsItIsWritten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := drawCalendar(t)
		text, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		var read *Calendar
		if err := json.Unmarshal(text, &read); err != nil {
			t.Fatal(err)
		}
		if again, err := read.In(read.Zone()); err != nil || again != c {
			t.Fatalf("%s was read as %v %+v: %v", text, again, again.Anchor(), err)
		}
	})
}

func TestTheCurrentPeriodIsFoundWithoutAnAllocation(t *testing.T) {
	c, _ := New(Month, Anchor{}, "Europe/Berlin")
	at := time.Date(2026, 11, 29, 0, 0, 0, 0, time.UTC).UnixMicro()
	c.Window(at)
	if n := testing.AllocsPerRun(100, func() { at++; c.Window(at) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}
