package portal

import (
	"fmt"
	"testing"
	"time"
)

func TestNumbersHaveSeparatorsAndTimesTheirZone(t *testing.T) {
	at := time.Date(2026, 11, 22, 23, 5, 9, 0, time.FixedZone("", 3600))
	for _, c := range []struct {
		got  func(any) (any, error)
		in   any
		want string
	}{
		{shows(number), 0, "0"},
		{shows(number), 999, "999"},
		{shows(number), -1000, "-1,000"},
		{shows(number), int64(1234567), "1,234,567"},
		{shows(number), int32(1000), "1,000"},
		{shows(when), at, `<time datetime="2026-11-22T22:05:09Z">2026-11-22 22:05:09 UTC</time>`},
		{shows(when), &at, `<time datetime="2026-11-22T22:05:09Z">2026-11-22 22:05:09 UTC</time>`},
		{shows(when), "2026-11-22T23:05:09+01:00", `<time datetime="2026-11-22T22:05:09Z">2026-11-22 22:05:09 UTC</time>`},
		{shows(when), "", "–"},
		{shows(when), (*time.Time)(nil), "–"},
		{shows(when), time.Time{}, "–"},
	} {
		if got, err := c.got(c.in); err != nil || fmt.Sprint(got) != c.want {
			t.Errorf("%v is shown as %v (%v), want %s", c.in, got, err, c.want)
		}
	}
	for _, in := range []any{1.5, "1", nil} {
		if got, err := number(in); err == nil {
			t.Errorf("%v is shown as the number %s", in, got)
		}
	}
	if got, err := when("<b>"); err == nil {
		t.Errorf("a text is shown as the time %s", got)
	}
	if got := percent(0.12345); got != "12.3 %" {
		t.Errorf("the share is %s", got)
	}
}

// shows returns a function of templates with a result of any type.
func shows[T any](f func(any) (T, error)) func(any) (any, error) {
	return func(in any) (any, error) { return f(in) }
}
