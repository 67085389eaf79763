package portal

import (
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
)

// limitWords returns a limit as a sentence without its full stop, such as "1,000 requests per minute, shared by all
// users of acme, in whole minutes UTC". who is the tenant; "" stands for the reader's own.
func limitWords(l *answers.LimitInForce, who string) string {
	if who == "" {
		who = "your organization"
	}
	parts := []string{quantityWords(l)}
	if l.Endpoint != "" {
		parts[0] += " to " + l.Endpoint
	}
	if scope := scopeWords[l.Scope]; scope != "" {
		parts = append(parts, strings.Replace(scope, "WHO", who, 1))
	}
	if way := algorithmWords(l); way != "" {
		parts = append(parts, way)
	}
	if l.Cost > 1 && !l.Settles {
		parts = append(parts, "of which a request spends "+humanize.Comma(l.Cost))
	}
	return strings.Join(parts, ", ")
}

// quantityWords returns how much a limit allows: "1,000 requests per minute".
func quantityWords(l *answers.LimitInForce) string {
	unit := "request"
	if l.Settles || l.Cost > 1 {
		unit = "token"
	}
	return plural(l.Limit, unit) + " per " + windowWords(l.WindowSize)
}

// scopeWords say which requests spend from the same bucket. WHO is the tenant.
var scopeWords = map[string]string{
	"tenant":          "shared by all users of WHO",
	"user":            "for each user of WHO",
	"credential":      "for each credential of WHO",
	"ip":              "for each address",
	"endpoint":        "for each endpoint, shared by all tenants",
	"global":          "shared by all tenants",
	"tenant+endpoint": "for each endpoint, shared by all users of WHO",
	"user+endpoint":   "for each user of WHO and each endpoint",
}

// algorithmWords returns when a limit allows more again.
func algorithmWords(l *answers.LimitInForce) string {
	window := windowWords(l.WindowSize)
	switch l.Algorithm {
	case "fixed_window":
		if strings.Contains(window, " ") {
			return "in steps of " + window + " UTC"
		}
		return "in whole " + window + "s UTC"
	case "sliding_window":
		return "in about the last " + window
	case "sliding_log":
		return "in any " + window
	case "leaky_bucket":
		return "evenly spaced, at most " + humanize.Comma(l.Burst) + " at once"
	case "token_bucket":
		if l.Burst != l.Limit {
			return "refilled evenly, at most " + humanize.Comma(l.Burst) + " at once"
		}
		return "refilled evenly"
	}
	return ""
}

// Units of windows and of relative times, in seconds, the longest first.
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

// timeAhead returns how far an instant is ahead of now: "in 3 minutes". It returns "" for one that is not.
func timeAhead(at, now time.Time) string {
	for _, u := range units {
		if n := int64(at.Sub(now).Seconds()) / u.seconds; n > 0 {
			return "in " + plural(n, u.name)
		}
	}
	return ""
}

// minuteTime returns an instant in UTC, to the minute.
func minuteTime(at time.Time) string { return at.UTC().Format("2 Jan 2006 15:04 UTC") }
