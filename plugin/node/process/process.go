// Package process has the version, the clocks, the log and the parsers of settings of every program of this project.
package process

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/migrations"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/clock"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
)

// Version is the version of all programs and of the plugin in Kong.
const Version = "0.1.0"

// Commit returns the commit that the program was built of, and its time in RFC 3339. Both are empty if Go recorded none
// (go help buildvcs). The commit of a tree with other changes ends in "+dirty".
func Commit() (id, at string) {
	info, _ := debug.ReadBuildInfo()
	if info == nil {
		return "", ""
	}
	settings := map[string]string{}
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	id, at = settings["vcs.revision"], settings["vcs.time"]
	if settings["vcs.modified"] == "true" {
		id += "+dirty"
	}
	return id, at
}

// VersionLine returns the version, with the commit and its time if Go recorded them.
func VersionLine() string {
	id, at := Commit()
	if id == "" {
		return Version
	}
	return fmt.Sprintf("%s (commit %s, %s)", Version, id, at)
}

// started is the instant from which Elapsed counts.
var started = time.Now()

// Elapsed returns the time since the process started. It never steps.
func Elapsed() limit.Micros { return limit.Micros(time.Since(started).Microseconds()) }

// WallClock returns the time of day, on which overrides expire. It may step.
func WallClock() limit.Micros { return limit.Micros(time.Now().UnixMicro()) }

// BucketClock is the clock of the buckets in this process.
var BucketClock = clock.New()

// ConnectFaults returns a function that rewrites the error of a failed connection to Postgres as one line. The line
// names source, the flag, variable or setting to correct. The driver's text repeats each attempt with its address.
func ConnectFaults(source func() string) func([]string, slog.Attr) slog.Attr {
	return func(_ []string, a slog.Attr) slog.Attr {
		if err, ok := a.Value.Any().(error); ok {
			if fault := migrations.ConnectFault(err, source()); fault != "" {
				a.Value = slog.StringValue(fault)
			}
		}
		return a
	}
}

// NodeName returns the name of this node for a setting: hostname means the machine's.
func NodeName(setting string) (string, error) {
	if setting != "hostname" {
		return setting, nil
	}
	name, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("node-name: %w", err)
	}
	return name, nil
}

// ParseDuration parses a duration above 0.
func ParseDuration(text string, to *time.Duration) error {
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		return errors.New("must be a duration above 0, such as 250ms or 1s")
	}
	*to = d
	return nil
}

// ParseInt parses a whole number of at least lowest.
func ParseInt(text string, lowest int, to *int) error {
	n, err := strconv.Atoi(text)
	if err != nil || n < lowest {
		return fmt.Errorf("must be a whole number, at least %d", lowest)
	}
	*to = n
	return nil
}

// ParseLevel parses the level of a log.
func ParseLevel(text string, to *slog.Level) error {
	if err := to.UnmarshalText([]byte(text)); err != nil {
		return errors.New("must be debug, info, warn or error")
	}
	return nil
}

// ParseSwitch parses on or off.
func ParseSwitch(text string, to *bool) error {
	if text != "on" && text != "off" {
		return errors.New("must be on or off")
	}
	*to = text == "on"
	return nil
}
