package metrics

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// lineBytes bounds the numbers of one log line, in bytes. Kong writes the lines into its error log, where OpenResty
// cuts lines off after 4096 bytes.
const lineBytes = 3000

// logLast logs the plugin's counters that are not 0 after the last scrape, in lines that fit into Kong's log.
func (s *Server) logLast() {
	numbers, err := lastNumbers(s.options.Metrics)
	if err != nil {
		s.options.Log.Warn("gathering the last numbers of this process failed: some are missing", "error", err)
	}
	parts := splitLines(numbers)
	for i, part := range parts {
		s.options.Log.LogAttrs(context.Background(), slog.LevelInfo, "last numbers of this process",
			slog.Int("part", i+1), slog.Int("parts", len(parts)), slog.GroupAttrs("counters", part...))
	}
}

// lastNumbers returns the plugin's counters that are not 0, each under its name and labels as Prometheus writes them.
// It adds up tenants and endpoints, which may be thousands.
func lastNumbers(from prometheus.Gatherer) ([]slog.Attr, error) {
	families, err := from.Gather()
	if err != nil {
		err = fmt.Errorf("gather the last numbers: %w", err)
	}
	var numbers []slog.Attr
	for _, family := range families {
		if !strings.HasPrefix(family.GetName(), prefix) {
			continue
		}
		sums := map[string]float64{}
		for _, metric := range family.GetMetric() {
			if metric.GetCounter().GetValue() == 0 { // also of a metric that is not a counter
				continue
			}
			var labels []string
			for _, label := range metric.GetLabel() {
				if name := label.GetName(); name != orgLabel && name != endpointLabel {
					labels = append(labels, fmt.Sprintf("%s=%q", name, label.GetValue()))
				}
			}
			name := family.GetName()
			if len(labels) > 0 {
				name += "{" + strings.Join(labels, ",") + "}"
			}
			sums[name] += metric.GetCounter().GetValue()
		}
		for _, name := range slices.Sorted(maps.Keys(sums)) {
			numbers = append(numbers, slog.Float64(name, sums[name]))
		}
	}
	return numbers, err
}

// splitLines splits numbers into parts that fit into a line each. It returns at least one part, which may be empty.
func splitLines(numbers []slog.Attr) [][]slog.Attr {
	var parts [][]slog.Attr
	begin, length := 0, 0
	for i, number := range numbers {
		// Quotes are escaped; around the name there are quotes, a colon and a comma, and a value has up to 20 bytes.
		size := len(number.Key) + strings.Count(number.Key, `"`) + 24
		if length > 0 && length+size > lineBytes {
			parts, begin, length = append(parts, numbers[begin:i]), i, 0
		}
		length += size
	}
	return append(parts, numbers[begin:])
}
