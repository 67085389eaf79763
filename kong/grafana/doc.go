// Package grafana holds the dashboards about the rate limiter, as JSON files that operators import into Grafana 11 or
// newer. Edit the JSON, or export it from Grafana.
//
// The tests check every panel, that its expressions use only names that the plugin publishes, and that a dashboard has
// no other fields than those of a list. The alerts are in kong/prometheus.
package grafana
