package server

import (
	"fmt"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/events/kafka"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/node/process"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/observe/metrics"
)

// maxSingles bounds denial-singles.
const maxSingles = 100

// denialRows are the settings of the record of denials.
var denialRows = []settingRow{
	{
		"denial-log",
		"off",
		"where to record denials, as JSON lines: off, stderr, or the path of a file",
		func(s *settings, text string) error {
			s.DenialLog = text
			return nil
		},
	},
	{
		"denial-log-size", "64MiB", "the size at which the file is renamed and a new one started",
		func(s *settings, text string) error {
			return parseBytes(text, &s.DenialLogSize)
		},
	},
	{"denial-log-keep", "5", "the number of renamed files to keep", func(s *settings, text string) error {
		return process.ParseInt(text, 1, &s.DenialLogKeep)
	}},
	{
		"denial-singles",
		"5",
		"the number of denials of a tenant by a policy in a second that are recorded one by one, from 0 to 100, with " +
			"1000 a second of all tenants; one line counts those after them",
		func(s *settings, text string) error {
			if err := process.ParseInt(text, 0, &s.DenialSingles); err != nil || s.DenialSingles > maxSingles {
				return fmt.Errorf("must be a whole number from 0 to %d", maxSingles)
			}
			return nil
		},
	},
	{
		"denial-users",
		"false",
		"true: record users and addresses in plain text instead of hashed",
		func(s *settings, text string) error {
			return parseBool(text, &s.DenialUsers)
		},
	},
	{
		"denial-salt-file",
		"none",
		"a file with the salt for the hashes, so that a user has the same hash on all nodes; none: a random salt per process",
		func(s *settings, text string) error {
			s.DenialSaltFile = given(text)
			return nil
		},
	},
	{
		"denial-webhooks",
		"off",
		"on: offer denials to webhooks, through the database; off: do not",
		func(s *settings, text string) error {
			return process.ParseSwitch(text, &s.DenialWebhooks)
		},
	},
	{
		"denial-recent",
		"on",
		"on: report a bounded sample of denials to the database every 5 s, if there is one, for people to read; off: do not",
		func(s *settings, text string) error {
			return process.ParseSwitch(text, &s.DenialRecent)
		},
	},
	{
		"denial-topic",
		"ratelimit.denials",
		"the topic of Kafka that denials are sent to, if kafka-brokers is given",
		func(s *settings, text string) error {
			return kafka.ParseTopic(text, &s.DenialTopic)
		},
	},
}

// kafkaRows returns the settings of Kafka, which ratelimit serve has too.
func kafkaRows() []settingRow {
	var rows []settingRow
	for _, row := range kafka.Settings() {
		rows = append(rows, settingRow{row.Name, row.Default, row.Usage, func(s *settings, text string) error {
			return row.Set(&s.Kafka, text)
		}})
	}
	return rows
}

// monitorRows are the settings of metrics and health checks.
var monitorRows = []settingRow{
	{
		metrics.RemoteSetting,
		"false",
		"true: allow a metrics-listen address that other machines can reach",
		func(s *settings, text string) error {
			return parseBool(text, &s.MetricsAllowRemote)
		},
	},
	{
		"ready-needs-redis",
		"false",
		"true: /readyz fails while Redis is unavailable (not address_redis), so that load balancers take the node out of rotation",
		func(s *settings, text string) error {
			return parseBool(text, &s.ReadyNeedsRedis)
		},
	},
}
