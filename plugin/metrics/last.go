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

// lineBytes is about how long the numbers of one log line may be. Kong writes our lines into its error log, where
// OpenResty cuts off what is beyond 4096 bytes.
const lineBytes = 3000

// logLast logs all counters of ours that are not 0, because nobody can scrape them any more: one line, or several
// where one would be cut off.
func (s *Server) logLast() {
	numbers, err := lastNumbers(s.options.Metrics)
	if err != nil {
		s.options.Log.Warn("some of the last numbers of this process are missing", "error", err)
	}
	parts := inLines(numbers)
	for i, part := range parts {
		s.options.Log.LogAttrs(context.Background(), slog.LevelInfo, "last numbers of this process",
			slog.Int("part", i+1), slog.Int("parts", len(parts)), slog.GroupAttrs("counters", part...))
	}
}

// lastNumbers are the counters of ours that are not 0, each under its name and labels as Prometheus writes them. Tenants
// and endpoints are added up: they would be thousands.
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
			if metric.GetCounter().GetValue() == 0 { // 0 of what is not a counter, too
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

// inLines cuts numbers into parts that fit into a line each; at least one, even if it is empty: that a process counted
// nothing is worth knowing.
func inLines(numbers []slog.Attr) [][]slog.Attr {
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
