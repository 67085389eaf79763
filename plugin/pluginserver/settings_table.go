package pluginserver

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/addresses"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/lease"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/internal/setting"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/metrics"
)

// settingRow is one row of the table in docs/configuration.md.
type settingRow struct {
	name  string // as a flag; in a file with underscores; in the environment in upper case behind TENANT_RATE_LIMITING_
	value string // the default
	usage string
	set   func(s *settings, text string) error
}

var table = []settingRow{
	{
		"kong-prefix",
		"/usr/local/kong",
		"directory of the socket that Kong connects to",
		func(s *settings, text string) error {
			s.KongPrefix = text
			return nil
		},
	},
	{"log-level", "info", "debug, info, warn or error", func(s *settings, text string) error {
		return setting.ParseLevel(text, &s.LogLevel)
	}},
	{"log-format", "json", "json or text", func(s *settings, text string) error {
		if s.LogText = text == "text"; !s.LogText && text != "json" {
			return errors.New("must be json or text")
		}
		return nil
	}},
	{
		"log-file",
		"stderr",
		"where lines go: stderr, which Kong hides below its log_level info, syslog, or the path of a file",
		func(s *settings, text string) error {
			s.LogFile = text
			return nil
		},
	},
	{"log-file-size", "64MiB", "size from which that file is full, and renamed", func(s *settings, text string) error {
		return parseBytes(text, &s.LogFileSize)
	}},
	{"log-file-keep", "5", "how many full files are kept", func(s *settings, text string) error {
		return setting.ParseInt(text, 1, &s.LogFileKeep)
	}},
	{
		"time-budget",
		"1s",
		"how long one request may wait for Kong's answers before on_internal_error decides",
		func(s *settings, text string) error {
			return setting.ParseDuration(text, &s.TimeBudget)
		},
	},
	{
		"drain-time",
		"5s",
		"how long running requests may take to finish after SIGTERM",
		func(s *settings, text string) error {
			return setting.ParseDuration(text, &s.DrainTime)
		},
	},
	{
		"end-with-kong",
		"auto",
		"true ends the process after 10 s without a connection when the Kong that started it is gone or another process has its socket; auto: unless systemd or a supervisor started it",
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
		"most buckets kept in this process (about 250 bytes each, a sliding_log 16 more for every request it remembers); beyond it the one that expires soonest makes room",
		func(s *settings, text string) error {
			return setting.ParseInt(text, 1, &s.MaxBuckets)
		},
	},
	{
		"max-procs",
		"0",
		"how many threads run Go code at once, in place of GOMAXPROCS; 0: one for every four cores, at least one",
		func(s *settings, text string) error {
			return setting.ParseInt(text, 0, &s.MaxProcs)
		},
	},
	{
		"memory-limit",
		"0",
		"soft limit of the process's memory, in place of GOMEMLIMIT, for instance 512MiB; 0: none",
		func(s *settings, text string) error {
			return parseBytes(text, &s.MemoryLimit)
		},
	},
	{
		"nodes",
		"1",
		"the fewest Kong nodes that share a limit while Redis is away; when more were last seen alive, they count",
		func(s *settings, text string) error {
			if err := setting.ParseInt(text, 1, &s.Nodes); err != nil || s.Nodes > mostNodes {
				return fmt.Errorf("must be a whole number from 1 to %d", mostNodes)
			}
			return nil
		},
	},
	{
		"lease-share",
		"2",
		"percent of a limit, at most 5, that all nodes together may have taken from Redis ahead of need; 0: every request asks. The same on all nodes",
		func(s *settings, text string) error {
			if err := setting.ParseInt(text, 0, &s.LeaseShare); err != nil || s.LeaseShare > lease.MaxSharePct {
				return fmt.Errorf("must be a whole number from 0 to %d", lease.MaxSharePct)
			}
			return nil
		},
	},
	{
		"max-addresses",
		strconv.Itoa(addresses.DefaultMost),
		"most addresses that have buckets in each Redis by this node at once (about 230 bytes each there, and as much again together where limits are sliding_log); further ones share a bucket with their /24 or /48, and above a tenth of this many of those are counted in this process; 0: any number",
		func(s *settings, text string) error {
			return setting.ParseInt(text, 0, &s.MaxAddresses)
		},
	},
	{
		"new-addresses",
		strconv.Itoa(addresses.DefaultRate),
		"how many addresses a second that this node has not seen lately get such buckets, and ten seconds' worth at once; 0: any number",
		func(s *settings, text string) error {
			return setting.ParseInt(text, 0, &s.NewAddresses)
		},
	},
	{
		"database",
		"none",
		"connection string of the Postgres that has policies, tiers and overrides; one with a password is better kept in a file",
		func(s *settings, text string) error {
			s.Database = given(text)
			return nil
		},
	},
	{
		"database-file",
		"none",
		"file with that connection string, read for every connection",
		func(s *settings, text string) error {
			s.DatabaseFile = given(text)
			return nil
		},
	},
	{
		"snapshot-dir",
		"kong-prefix",
		"directory of the last rows from Postgres, for a start without it; off: nothing is saved",
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
		"most rows from Postgres, about 400 bytes each; of more, the last good ones stay in force",
		func(s *settings, text string) error {
			return setting.ParseInt(text, 1, &s.SnapshotMaxRows)
		},
	},
	{
		"node-name",
		"hostname",
		"this node's name in ratelimit fleet; a part that differs from process to process is added",
		func(s *settings, text string) error {
			s.NodeName = text
			return nil
		},
	},
	{
		metrics.Setting,
		"127.0.0.1:9542",
		"host:port of /metrics, /healthz and /readyz; off: none",
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
		"the busiest tenants, so many, have metrics of their own; the others are counted together",
		func(s *settings, text string) error {
			return setting.ParseInt(text, 0, &s.MetricsTenants)
		},
	},
	{
		"metrics-always",
		"none",
		"tenants that always have metrics of their own, separated by commas",
		func(s *settings, text string) error {
			if text = given(text); text != "" {
				s.MetricsAlways = strings.Split(text, ",")
			}
			return metrics.TenantLabels{Always: s.MetricsAlways}.Validate()
		},
	},
	{
		"denial-log",
		"off",
		"where denials are recorded, one JSON line for each tenant, policy and second: off, stderr, or the path of a file",
		func(s *settings, text string) error {
			s.DenialLog = text
			return nil
		},
	},
	{"denial-log-size", "64MiB", "size from which that file is full, and renamed", func(s *settings, text string) error {
		return parseBytes(text, &s.DenialLogSize)
	}},
	{"denial-log-keep", "5", "how many full files are kept", func(s *settings, text string) error {
		return setting.ParseInt(text, 1, &s.DenialLogKeep)
	}},
	{
		"denial-users",
		"false",
		"true records users and addresses as they are, and not as hashes",
		func(s *settings, text string) error {
			return parseBool(text, &s.DenialUsers)
		},
	},
	{
		"denial-salt-file",
		"none",
		"file with the salt of these hashes, for the same hash of one user on all nodes; none: random for each process",
		func(s *settings, text string) error {
			s.DenialSaltFile = given(text)
			return nil
		},
	},
	{
		metrics.RemoteSetting,
		"false",
		"true lets metrics-listen be an address that other machines reach",
		func(s *settings, text string) error {
			return parseBool(text, &s.MetricsAllowRemote)
		},
	},
	{
		"ready-needs-redis",
		"false",
		"true makes /readyz fail while Redis is away, that of addresses excepted, which takes the node out of rotation",
		func(s *settings, text string) error {
			return parseBool(text, &s.ReadyNeedsRedis)
		},
	},
}
