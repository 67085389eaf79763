// Package promtest starts a real Prometheus for a test, and ends it with it: it scrapes what the test points it at,
// evaluates the rules it is given, and answers queries. It lives in a temporary folder and on a free port of the
// loopback; whatever else runs on the machine is not touched. Without a server, [Promtool] runs the tool that checks
// rules, and [Published] tells what an expression uses that is not published.
//
// A test without Prometheus fails, it is never skipped: an unchecked promise is not kept. Where prometheus or
// promtool is missing and this process may install it (apt-get), it does, once.
//
// What the rules and the expressions are is kong/prometheus's and kong/grafana's.
package promtest
