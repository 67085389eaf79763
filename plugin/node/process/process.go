// Package process has the version, the clocks and the log of every program of this project.
package process

import (
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/migrations"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/clock"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
)

// Version is the version of all programs and of the plugin in Kong.
const Version = "0.1.0"

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
