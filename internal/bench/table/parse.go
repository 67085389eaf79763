package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// results holds the output of go test -bench.
type results struct {
	cpu    string   // as the go command prints it, or ""
	pkg    string   // of the next lines
	groups []*group // of the top-level benchmarks, in the order of the input
}

// group holds one top-level benchmark.
type group struct {
	pkg  string
	name string // with the prefix Benchmark
	rows []*row
}

// row holds one sub-benchmark.
type row struct {
	labels []label
	units  []string // in the order of the input
	values map[string][]float64
}

// label is one part of a sub-benchmark's name: name=value, or a value without a name.
type label struct{ name, value string }

// parse reads the output of go test -bench. It skips other lines. A failure is an error, and so is
// input without results.
func parse(in io.Reader) (*results, error) {
	var r results
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		switch {
		case strings.HasPrefix(line, "--- FAIL"), strings.HasPrefix(line, "FAIL"), strings.HasPrefix(line, "panic:"):
			return nil, fmt.Errorf("there are failures: %s", line)
		case strings.HasPrefix(line, "cpu: "):
			r.cpu = strings.TrimPrefix(line, "cpu: ")
		case strings.HasPrefix(line, "pkg: "):
			r.pkg = strings.TrimPrefix(line, "pkg: ")
		case strings.HasPrefix(line, "Benchmark"):
			if err := r.add(strings.Fields(line)); err != nil {
				return nil, fmt.Errorf("read %q: %w", line, err)
			}
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read results: %w", err)
	}
	if len(r.groups) == 0 {
		return nil, errors.New("there are no results")
	}
	return &r, nil
}

// add adds a line of results: name, iterations, and pairs of a value and its unit. A name alone announces a
// later line.
func (r *results) add(fields []string) error {
	if len(fields) == 1 {
		return nil
	}
	if len(fields) < 4 || len(fields)%2 != 0 {
		return errors.New("want a name, a count, and values with units")
	}
	name, sub, _ := strings.Cut(withoutProcs(fields[0]), "/")
	target := r.group(name).row(labels(sub))
	for pair := range slices.Chunk(fields[2:], 2) {
		value, err := strconv.ParseFloat(pair[0], 64)
		if err != nil {
			return err
		}
		unit := pair[1]
		if _, ok := target.values[unit]; !ok {
			target.units = append(target.units, unit)
		}
		target.values[unit] = append(target.values[unit], value)
	}
	return nil
}

// withoutProcs drops the suffix for GOMAXPROCS, such as -8, that go test adds to a name.
func withoutProcs(name string) string {
	i := strings.LastIndexByte(name, '-')
	if i < 0 {
		return name
	}
	if _, err := strconv.ParseUint(name[i+1:], 10, 32); err != nil {
		return name
	}
	return name[:i]
}

// labels returns the parts of a sub-benchmark's name. Parts without a name are one label together.
func labels(name string) []label {
	var list []label
	for part := range strings.SplitSeq(name, "/") {
		key, value, named := strings.Cut(part, "=")
		switch i := slices.IndexFunc(list, func(l label) bool { return l.name == "" }); {
		case part == "":
		case named:
			list = append(list, label{key, value})
		case i >= 0:
			list[i].value += "/" + part
		default:
			list = append(list, label{"", part})
		}
	}
	return list
}

// group returns the group of a benchmark of the current package, and adds it if needed.
func (r *results) group(name string) *group {
	for _, g := range r.groups {
		if g.pkg == r.pkg && g.name == name {
			return g
		}
	}
	g := &group{pkg: r.pkg, name: name}
	r.groups = append(r.groups, g)
	return g
}

// row returns the row with labels, and adds it if needed.
func (g *group) row(labels []label) *row {
	for _, r := range g.rows {
		if slices.Equal(r.labels, labels) {
			return r
		}
	}
	r := &row{labels: labels, values: map[string][]float64{}}
	g.rows = append(g.rows, r)
	return r
}
