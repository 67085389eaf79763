// Package grafana generates the dashboards about the rate limiter. Operators import the JSON files beside it, for
// Grafana 11 or newer. The dashboards are written in Go so that every panel has a unit and a description, and all look
// alike.
//
// The expressions use only names that the plugin publishes. The alerts are in kong/prometheus.
package grafana

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// dashboard describes one page.
type dashboard struct {
	name        string // of the file; the uid is rate-limiter- and this
	title       string
	description string
	variables   []variable
	panels      []panel // from left to right and top to bottom
}

// variable is a choice at the top of a page. Its values are those of a metric's label, or choices without a label.
type variable struct {
	name, title   string
	metric, label string
	choices       string // separated by commas; the first is the default
}

// The kinds of panels, as Grafana calls them.
const (
	timeseries = "timeseries"
	stat       = "stat"     // one number, the last
	bargauge   = "bargauge" // one bar a series, of the whole shown time
	table      = "table"    // one row for the labels, one column a query
)

// The units, as Grafana calls them.
const (
	perSecond = "reqps"
	share     = "percentunit" // 0 to 1
	seconds   = "s"
	count     = "short"
	bytesUsed = "bytes"
	yesNo     = "bool_yes_no"
)

// panel describes one chart, number or table.
type panel struct {
	title       string
	description string
	kind        string
	unit        string // of all queries that have none of their own
	width       int    // of 24
	warnAt      float64
	queries     []query
}

// query is one expression, and the name of its series in a legend, or of its column in a table.
type query struct {
	expression string
	legend     string
	unit       string // in a table, of its column
}

// Files returns the JSON of all dashboards, by the name of the file.
func Files() (map[string][]byte, error) {
	files := map[string][]byte{}
	for _, d := range []dashboard{tenantUsage, topConsumers, throttling, rollout, health} {
		var text bytes.Buffer
		encoder := json.NewEncoder(&text)
		encoder.SetEscapeHTML(false) // expressions compare
		encoder.SetIndent("", "  ")
		if err := encoder.Encode(d.page()); err != nil {
			return nil, fmt.Errorf("render the dashboard %s: %w", d.name, err)
		}
		files[d.name+".json"] = text.Bytes()
	}
	return files, nil
}
