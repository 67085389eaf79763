package server

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/addresses"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/lease"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/events/kafka"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/node/process"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/observe/metrics"
)

// settingRow is one row of the table in docs/configuration.md.
type settingRow struct {
	name  string // as a flag; in a file with underscores; in the environment in upper case behind TENANT_RATE_LIMITING_
	value string // the default
	set   func(text string) error
	usage string
}

func setting(name, value string, set func(string) error, usage string) settingRow {
	return settingRow{name, value, set, usage}
}

// table returns all settings, in the order of the documentation. Each sets a field of s.
func (s *settings) table() []settingRow {
	return slices.Concat(s.processRows(), s.databaseRows(), s.denialRows(), s.kafkaRows(), s.monitorRows())
}

func (s *settings) processRows() []settingRow {
	return []settingRow{
		setting("kong-prefix", "/usr/local/kong", to(parseText, &s.KongPrefix),
			"Kong's prefix: the directory of the socket that Kong connects to"),
		setting("log-level", "info", to(process.ParseLevel, &s.LogLevel), "the log level: debug, info, warn or error"),
		setting("log-format", "json", to(parseLogFormat, &s.LogText), "the log format: json or text"),
		setting("log-file", "stderr", to(parseText, &s.LogFile),
			"where to write the log: stderr, which Kong shows only if its own log_level is info or lower; syslog; or the path of a file"),
		setting("log-file-size", "64MiB", to(parseBytes, &s.LogFileSize),
			"the size at which the file is renamed and a new one started"),
		setting("log-file-keep", "5", atLeast(1, &s.LogFileKeep), "the number of renamed files to keep"),
		setting("time-budget", "1s", to(process.ParseDuration, &s.TimeBudget),
			"the time that one request may wait for Kong's answers, before on_internal_error applies"),
		setting("drain-time", "5s", to(process.ParseDuration, &s.DrainTime),
			"the time that running requests have to finish after SIGTERM"),
		setting("end-with-kong", "auto", to(parseEndWithKong, &s.EndWithKong),
			"true: exit after 10 s without a connection if the Kong that started this process has ended, or another process listens on the socket; auto: true, unless systemd or another process manager started this process"),
		setting("max-buckets", "1000000", atLeast(1, &s.MaxBuckets),
			"the maximum number of buckets in this process, about 250 bytes each; a sliding_log takes 16 bytes more per request in it; above it, buckets are evicted, those first of which the least is lost"),
		setting("max-procs", "0", atLeast(0, &s.MaxProcs),
			"the number of threads that run Go code at the same time, instead of GOMAXPROCS; 0: one per four cores, at least one; a worker has all cores for its first second"),
		setting("memory-limit", "0", to(parseBytes, &s.MemoryLimit),
			"the soft memory limit of the process, such as 512MiB, instead of GOMEMLIMIT; 0: none"),
		setting("nodes", "1", between(1, mostNodes, &s.Nodes),
			"the minimum number of Kong nodes that share a limit while Redis is unavailable; if more nodes were alive when Redis was last reached, that number is used"),
		setting("lease-share", "2", between(0, lease.MaxSharePct, &s.LeaseShare),
			"the percent of a limit that all nodes together may hold on lease, up to 5; 0: no leases, every request calls Redis; use the same value on all nodes"),
		setting("max-addresses", strconv.Itoa(addresses.DefaultMost), atLeast(0, &s.MaxAddresses),
			"the maximum number of addresses for which this node keeps buckets in each Redis at the same time, about 230 bytes each (all sliding_log buckets together may take as much again); further addresses share the bucket of their /24 or /48, and when a tenth of this number of those exists, addresses are counted in this process; 0: unlimited"),
		setting("new-addresses", strconv.Itoa(addresses.DefaultRate), atLeast(0, &s.NewAddresses),
			"the maximum number of new addresses per second that get their own buckets, with bursts of ten times that; 0: unlimited"),
	}
}

func (s *settings) databaseRows() []settingRow {
	return []settingRow{
		setting("database", "none", optional("none", &s.Database),
			"the connection string of the Postgres with policies, tiers and overrides; if it has a password, use database-file"),
		setting("database-file", "none", optional("none", &s.DatabaseFile),
			"a file with the connection string; it is read again for each connection"),
		setting("snapshot-dir", "kong-prefix", s.setSnapshotDir,
			"the directory to save the database's rows in, so that the process can start while Postgres is down; off: save nothing"),
		setting("snapshot-mirror", "on", to(process.ParseSwitch, &s.SnapshotMirror),
			"on: keep a copy of the database's rows in the Redis of each config, for nodes that start while Postgres is down and have no saved rows; off: neither write nor read it"),
		setting("snapshot-max-rows", "2000000", atLeast(1, &s.SnapshotMaxRows),
			"the maximum number of rows from Postgres, about 400 bytes each; if there are more, the last rows that were within the maximum stay in force"),
		setting("node-name", "hostname", to(parseText, &s.NodeName),
			"this node's name in ratelimit fleet; a suffix per process is added"),
		setting("usage", "on", to(process.ParseSwitch, &s.Usage),
			"on: count the requests and tokens of every tenant, and report them to Postgres every 5 s, if there is a database; off: do not"),
		setting(metrics.Setting, "127.0.0.1:9542", optional("off", &s.MetricsListen),
			"the host:port of /metrics, /healthz and /readyz; off disables them"),
		setting("metrics-tenants", "500", atLeast(0, &s.MetricsTenants),
			"the number of busiest tenants with their own metrics; the other tenants are counted together"),
		setting("metrics-always", "none", s.setMetricsAlways,
			"tenants that always have their own metrics, separated by commas"),
	}
}

func (s *settings) denialRows() []settingRow {
	return []settingRow{
		setting("denial-log", "off", to(parseText, &s.DenialLog),
			"where to record denials, as JSON lines: off, stderr, or the path of a file"),
		setting("denial-log-size", "64MiB", to(parseBytes, &s.DenialLogSize),
			"the size at which the file is renamed and a new one started"),
		setting("denial-log-keep", "5", atLeast(1, &s.DenialLogKeep), "the number of renamed files to keep"),
		setting("denial-singles", "5", between(0, maxSingles, &s.DenialSingles),
			"the number of denials of a tenant by a policy in a second that are recorded one by one, from 0 to 100, with 1000 a second of all tenants; one line counts those after them"),
		setting("denial-users", "false", to(parseBool, &s.DenialUsers),
			"true: record users and addresses in plain text instead of hashed"),
		setting("denial-salt-file", "none", optional("none", &s.DenialSaltFile),
			"a file with the salt for the hashes, so that a user has the same hash on all nodes; none: a random salt per process"),
		setting("denial-webhooks", "off", to(process.ParseSwitch, &s.DenialWebhooks),
			"on: offer denials to webhooks, through the database; off: do not"),
		setting("denial-recent", "on", to(process.ParseSwitch, &s.DenialRecent),
			"on: report a bounded sample of denials to the database every 5 s, if there is one, for people to read; off: do not"),
		setting("denial-topic", "ratelimit.denials", to(kafka.ParseTopic, &s.DenialTopic),
			"the topic of Kafka that denials are sent to, if kafka-brokers is given"),
	}
}

// kafkaRows returns the settings of Kafka, which ratelimit serve has too.
func (s *settings) kafkaRows() (rows []settingRow) {
	for _, row := range kafka.Settings() {
		set := func(text string) error { return row.Set(&s.Kafka, text) }
		rows = append(rows, settingRow{row.Name, row.Default, set, row.Usage})
	}
	return rows
}

func (s *settings) monitorRows() []settingRow {
	return []settingRow{
		{
			metrics.RemoteSetting, "false", to(parseBool, &s.MetricsAllowRemote),
			"true: allow a metrics-listen address that other machines can reach",
		},
		setting("ready-needs-redis", "false", to(parseBool, &s.ReadyNeedsRedis),
			"true: /readyz fails while Redis is unavailable, so that load balancers take the node out of rotation"),
	}
}

func to[T any](parse func(text string, to *T) error, field *T) func(string) error {
	return func(text string) error { return parse(text, field) }
}

func atLeast(lowest int, field *int) func(string) error {
	return func(text string) error { return process.ParseInt(text, lowest, field) }
}

func between(lowest, most int, field *int) func(string) error {
	return func(text string) error {
		if err := process.ParseInt(text, lowest, field); err != nil || *field > most {
			return fmt.Errorf("must be a whole number from %d to %d", lowest, most)
		}
		return nil
	}
}

func parseText(text string, to *string) error {
	*to = text
	return nil
}

// optional parses a text that is empty for one word.
func optional(none string, field *string) func(string) error {
	return func(text string) error {
		if *field = text; text == none {
			*field = ""
		}
		return nil
	}
}

func parseLogFormat(text string, isText *bool) error {
	if *isText = text == "text"; !*isText && text != "json" {
		return errors.New("must be json or text")
	}
	return nil
}

func parseEndWithKong(text string, to *string) error {
	*to = text
	if ends := false; text != "auto" {
		return parseBool(text, &ends)
	}
	return nil
}

// setSnapshotDir comes after the setting of Kong's prefix.
func (s *settings) setSnapshotDir(text string) error {
	switch s.SnapshotDir = text; text {
	case "kong-prefix":
		s.SnapshotDir = s.KongPrefix
	case "off":
		s.SnapshotDir = ""
	}
	return nil
}

func (s *settings) setMetricsAlways(text string) error {
	if text != "none" && text != "" {
		s.MetricsAlways = strings.Split(text, ",")
	}
	return metrics.TenantLabels{Always: s.MetricsAlways}.Validate()
}
