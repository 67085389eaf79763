// Package promtest starts a real Prometheus for a test, and ends it with the test. The server scrapes targets,
// evaluates rules and answers queries. It has a temporary folder and a free port of the loopback. Without a server,
// [Promtool] checks rules, and [Published] finds unpublished metrics and labels in an expression.
//
// A test without Prometheus fails and is never skipped. If prometheus or promtool is missing, this package installs it
// with apt-get, once and if the environment asks for it (package debian).
//
// The rules are in kong/prometheus, the dashboards in kong/grafana.
package promtest
