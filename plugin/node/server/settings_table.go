package server

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/addresses"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/lease"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/node/process"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/observe/metrics"
)

// settingRow is one row of the table in docs/configuration.md.
type settingRow struct {
	name  string // as a flag; in a file with underscores; in the environment in upper case behind TENANT_RATE_LIMITING_
	value string // the default
	usage string
	set   func(s *settings, text string) error
}

// table has all settings, in the order of the documentation.
var table = append(slices.Concat(processRows, denialRows, kafkaRows()), monitorRows...)

var processRows = []settingRow{
	{
		"kong-prefix",
		"/usr/local/kong",
		"Kong's prefix: the directory of the socket that Kong connects to",
		func(s *settings, text string) error {
			s.KongPrefix = text
			return nil
		},
	},
	{"log-level", "info", "the log level: debug, info, warn or error", func(s *settings, text string) error {
		return process.ParseLevel(text, &s.LogLevel)
	}},
	{"log-format", "json", "the log format: json or text", func(s *settings, text string) error {
		if s.LogText = text == "text"; !s.LogText && text != "json" {
			return errors.New("must be json or text")
		}
		return nil
	}},
	{
		"log-file",
		"stderr",
		"where to write the log: stderr, which Kong shows only if its own log_level is info or lower; syslog; or the path of a file",
		func(s *settings, text string) error {
			s.LogFile = text
			return nil
		},
	},
	{
		"log-file-size", "64MiB", "the size at which the file is renamed and a new one started",
		func(s *settings, text string) error {
			return parseBytes(text, &s.LogFileSize)
		},
	},
	{"log-file-keep", "5", "the number of renamed files to keep", func(s *settings, text string) error {
		return process.ParseInt(text, 1, &s.LogFileKeep)
	}},
	{
		"time-budget",
		"1s",
		"the time that one request may wait for Kong's answers, before on_internal_error applies",
		func(s *settings, text string) error {
			return process.ParseDuration(text, &s.TimeBudget)
		},
	},
	{
		"drain-time",
		"5s",
		"the time that running requests have to finish after SIGTERM",
		func(s *settings, text string) error {
			return process.ParseDuration(text, &s.DrainTime)
		},
	},
	{
		"end-with-kong",
		"auto",
		"true: exit after 10 s without a connection if the Kong that started this process has ended, or another process listens on the socket; auto: true, unless systemd or a supervisor started this process",
		func(s *settings, text string) error {
			s.EndWithKong = text
			if ends := false; text != "auto" {
				return parseBool(text, &ends)
			}
			return nil
		},
	},
	{
		"max-buckets",
		"1000000",
		"the maximum number of buckets in this process, about 250 bytes each; a sliding_log takes 16 bytes more per request in it; above it, buckets are evicted, those first of which the least is lost",
		func(s *settings, text string) error {
			return process.ParseInt(text, 1, &s.MaxBuckets)
		},
	},
	{
		"max-procs",
		"0",
		"the number of threads that run Go code at the same time, instead of GOMAXPROCS; 0: one per four cores, at least one",
		func(s *settings, text string) error {
			return process.ParseInt(text, 0, &s.MaxProcs)
		},
	},
	{
		"memory-limit",
		"0",
		"the soft memory limit of the process, such as 512MiB, instead of GOMEMLIMIT; 0: none",
		func(s *settings, text string) error {
			return parseBytes(text, &s.MemoryLimit)
		},
	},
	{
		"nodes",
		"1",
		"the minimum number of Kong nodes that share a limit while Redis is unavailable; if more nodes were alive when Redis was last reached, that number is used",
		func(s *settings, text string) error {
			if err := process.ParseInt(text, 1, &s.Nodes); err != nil || s.Nodes > mostNodes {
				return fmt.Errorf("must be a whole number from 1 to %d", mostNodes)
			}
			return nil
		},
	},
	{
		"lease-share",
		"2",
		"the percent of a limit that all nodes together may hold on lease, up to 5; 0: no leases, every request calls Redis; use the same value on all nodes",
		func(s *settings, text string) error {
			if err := process.ParseInt(text, 0, &s.LeaseShare); err != nil || s.LeaseShare > lease.MaxSharePct {
				return fmt.Errorf("must be a whole number from 0 to %d", lease.MaxSharePct)
			}
			return nil
		},
	},
	{
		"max-addresses",
		strconv.Itoa(addresses.DefaultMost),
		"the maximum number of addresses for which this node keeps buckets in each Redis at the same time, about 230 bytes each (all sliding_log buckets together may take as much again); further addresses share the bucket of their /24 or /48, and when a tenth of this number of those exists, addresses are counted in this process; 0: unlimited",
		func(s *settings, text string) error {
			return process.ParseInt(text, 0, &s.MaxAddresses)
		},
	},
	{
		"new-addresses",
		strconv.Itoa(addresses.DefaultRate),
		"the maximum number of new addresses per second that get their own buckets, with bursts of ten times that; 0: unlimited",
		func(s *settings, text string) error {
			return process.ParseInt(text, 0, &s.NewAddresses)
		},
	},
	{
		"database",
		"none",
		"the connection string of the Postgres with policies, tiers and overrides; if it has a password, use database-file",
		func(s *settings, text string) error {
			s.Database = given(text)
			return nil
		},
	},
	{
		"database-file",
		"none",
		"a file with the connection string; it is read again for each connection",
		func(s *settings, text string) error {
			s.DatabaseFile = given(text)
			return nil
		},
	},
	{
		"snapshot-dir",
		"kong-prefix",
		"the directory to save the database's rows in, so that the process can start while Postgres is down; off: save nothing",
		func(s *settings, text string) error {
			switch s.SnapshotDir = text; text {
			case "kong-prefix":
				s.SnapshotDir = s.KongPrefix
			case "off":
				s.SnapshotDir = ""
			}
			return nil
		},
	},
	{
		"snapshot-max-rows",
		"2000000",
		"the maximum number of rows from Postgres, about 400 bytes each; if there are more, the last rows that were within the maximum stay in force",
		func(s *settings, text string) error {
			return process.ParseInt(text, 1, &s.SnapshotMaxRows)
		},
	},
	{
		"node-name",
		"hostname",
		"this node's name in ratelimit fleet; a suffix per process is added",
		func(s *settings, text string) error {
			s.NodeName = text
			return nil
		},
	},
	{
		"usage",
		"on",
		"on: count the requests and tokens of every tenant, and report them to Postgres every 5 s, if there is a database; off: do not",
		func(s *settings, text string) error {
			return process.ParseSwitch(text, &s.Usage)
		},
	},
	{
		metrics.Setting,
		"127.0.0.1:9542",
		"the host:port of /metrics, /healthz and /readyz; off disables them",
		func(s *settings, text string) error {
			if s.MetricsListen = text; text == "off" {
				s.MetricsListen = ""
			}
			return nil
		},
	},
	{
		"metrics-tenants",
		"500",
		"the number of busiest tenants with their own metrics; the other tenants are counted together",
		func(s *settings, text string) error {
			return process.ParseInt(text, 0, &s.MetricsTenants)
		},
	},
	{
		"metrics-always",
		"none",
		"tenants that always have their own metrics, separated by commas",
		func(s *settings, text string) error {
			if text = given(text); text != "" {
				s.MetricsAlways = strings.Split(text, ",")
			}
			return metrics.TenantLabels{Always: s.MetricsAlways}.Validate()
		},
	},
}
