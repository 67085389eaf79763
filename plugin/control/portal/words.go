package portal

import (
	"strings"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
)

// algorithmWords returns when a limit allows more again.
func algorithmWords(l *answers.LimitInForce) string {
	window := windowWords(l.WindowSize)
	switch l.Algorithm {
	case "concurrency":
		return "each for at most " + windowWords(l.MaxDuration)
	case "fixed_window":
		if l.Period != "" {
			return "by the calendar"
		}
		if strings.Contains(window, " ") {
			return "in steps of " + window + " UTC"
		}
		return "in whole " + window + "s UTC"
	case "sliding_window":
		return "in about the last " + window
	case "sliding_log":
		return "in any " + window
	case "leaky_bucket":
		return "evenly spaced, at most " + amountWords(l.Burst, l.Unit) + " at once"
	case "token_bucket":
		if l.Burst != l.Limit {
			return "refilled evenly, at most " + amountWords(l.Burst, l.Unit) + " at once"
		}
		return "refilled evenly"
	}
	return ""
}

// Units of windows, in seconds, the longest first.
var units = [...]struct {
	seconds int64
	name    string
}{{86400, "day"}, {3600, "hour"}, {60, "minute"}, {1, "second"}}

// windowWords returns a window in its largest whole unit: 60 is "minute", 600 is "10 minutes".
func windowWords(seconds int64) string {
	for _, u := range units {
		switch {
		case seconds == u.seconds:
			return u.name
		case seconds > 0 && seconds%u.seconds == 0:
			return plural(seconds/u.seconds, u.name)
		}
	}
	return plural(seconds, "second")
}

// plural returns a number with its noun: "1 day", "1,000 requests".
func plural(n int64, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return humanize.Comma(n) + " " + noun + "s"
}

// minuteTime returns an instant in UTC, to the minute.
func minuteTime(at time.Time) string { return at.UTC().Format("2 Jan 2006 15:04 UTC") }
