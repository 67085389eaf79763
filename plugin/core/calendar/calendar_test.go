package calendar

import (
	"archive/zip"
	"fmt"
	"testing"

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
	zone := rapid.SampledFrom(zoneData().File).Filter(func(f *zip.File) bool { return f.Name != unset }).Draw(t, "zone")
	c, err := New(period, anchor, zone.Name)
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
		{Week, Anchor{Month: 2, Hour: 24}, "", "anchor.month: a week has none\nanchor.hour: must be between 0 and 23, got 24"},
	} {
		if _, err := New(one.period, one.anchor, one.zone); err == nil || err.Error() != one.want {
			t.Errorf("%v %+v %q: %v, not %s", one.period, one.anchor, one.zone, err, one.want)
		}
	}
	for _, zone := range []string{"Europe/Bonn", "America", "Local", unset} {
		want := fmt.Sprintf("time_zone: unknown time zone %q: use an IANA name such as Europe/Berlin (zone data %s)", zone,
			DataVersion)
		if _, err := New(Day, Anchor{}, zone); err == nil || err.Error() != want {
			t.Errorf("%q: %v, not %s", zone, err, want)
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
