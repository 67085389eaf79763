package cli

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema/deck"
)

// document is a file of policies: what apply makes of the database.
//
//	namespace: default        # may be left out
//	partial: true             # may be left out: the file has some of the policies only
//	policies:
//	- {name: daily, tier: gold, scope: tenant, limit: 1000, window_size: 86400}
//	costs:                    # may be left out: costs stay
//	- {endpoint: POST /exports, cost: 50}
//	prices:                   # may be left out: prices stay
//	- {model: "gpt-4o*", prompt: "2.50", completion: "10", starts_at: 2026-01-01T00:00:00Z}
//	tenants:                  # may be left out: tenants stay
//	- {id: acme, tier: gold}
//	overrides:                # may be left out: overrides stay
//	- {kind: multiplier, tenant: acme, factor: 1.5, permanent: true, reason: their contract}
type document struct {
	file    string
	partial bool // as the file says
	set     api.Document
	places  map[string][]place // of the rows, by their list
	faults  []error
	faulty  map[string]bool // the fields with faults: policies[3].limit

	listed bool // it has a list
	whole  bool // costs, prices, tenants and overrides are allowed too
}

// place is where a policy of a document is.
type place struct {
	path   string         // policies[3]
	line   int            // of the policy
	fields map[string]int // field → line
}

// read reads a file of policies. The error joins all faults, each with file, line and field.
func (d *document) read(r io.Reader, file string) error {
	d.file, d.faulty, d.places = file, map[string]bool{}, map[string][]place{}
	var root yaml.Node
	decoder := yaml.NewDecoder(r)
	if err := decoder.Decode(&root); err != nil {
		if errors.Is(err, io.EOF) {
			d.fault(0, "", "is empty: write policies: [] to delete all policies")
		} else {
			d.fault(0, "", "is not YAML: %s", strings.TrimPrefix(err.Error(), "yaml: "))
		}
	} else if second := new(yaml.Node); !errors.Is(decoder.Decode(second), io.EOF) {
		d.fault(max(1, second.Line), "", "must hold a single YAML document: remove everything after ---")
	} else {
		d.root(aliased(root.Content[0]))
	}
	if len(d.faults) == 0 { // else what else is wrong would be but a consequence
		d.checkTogether()
	}
	return errors.Join(d.faults...)
}

func (d *document) fault(line int, path, format string, args ...any) {
	d.faults = append(d.faults, d.at(line, path, fmt.Sprintf(format, args...)))
	d.faulty[fieldOf(path)] = true
}

// fieldOf returns the path of the field of a row, given a path in it: policies[3].settle of policies[3].settle.reserve.
func fieldOf(path string) string {
	parts := strings.SplitN(path, ".", 3)
	return strings.Join(parts[:min(len(parts), 2)], ".")
}

// rowFaults reports what is wrong with a row by itself, except in fields that could not be read.
func (d *document) rowFaults(at place, faults []schema.Fault) {
	isUnread := func(f schema.Fault) bool { return d.faulty[fieldOf(at.path+"."+f.Path)] }
	for _, f := range slices.DeleteFunc(faults, isUnread) {
		d.fault(at.lineOf(f.Path), at.path+"."+f.Path, "%s", f.Message)
	}
}

func (d *document) at(line int, path, problem string) error {
	return &documentError{deck.Finding{File: d.file, Line: line, Path: path, Severity: deck.Error, Message: problem}}
}

// documentError is a fault of a document. Its line is 0 if unknown, and a fault of the document as a whole has no path.
type documentError struct{ deck.Finding }

func (e *documentError) Error() string {
	text := e.File + ": "
	if e.Line > 0 {
		text = fmt.Sprintf("%s:%d: ", e.File, e.Line)
	}
	if e.Path != "" {
		text += e.Path + ": "
	}
	return text + e.Message
}

// isDocument reports whether a file has a list of a document, which no decK file has.
func isDocument(text []byte) bool {
	var root yaml.Node
	if yaml.Unmarshal(text, &root) != nil || len(root.Content) == 0 || root.Content[0].Kind != yaml.MappingNode {
		return false
	}
	for pair := range slices.Chunk(root.Content[0].Content, 2) {
		if _, isList := sections[pair[0].Value]; isList {
			return true
		}
	}
	return false
}

// aliased follows an alias to what it stands for.
func aliased(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

func (d *document) root(n *yaml.Node) {
	if n.Kind != yaml.MappingNode {
		d.fault(n.Line, "", "must be a mapping with the field policies")
		return
	}
	seen := map[string]bool{}
	for pair := range slices.Chunk(n.Content, 2) {
		key, value := pair[0], aliased(pair[1])
		switch {
		case seen[key.Value]:
			d.fault(key.Line, key.Value, "appears twice")
		case key.Value == "namespace":
			d.value(value, key.Line, "namespace", &d.set.Namespace)
		case key.Value == "partial":
			d.value(value, key.Line, "partial", &d.partial)
		case !d.section(key.Value, value):
			d.fault(key.Line, key.Value, "unknown field: the fields of %s", d.fieldsText())
		}
		seen[key.Value] = true
	}
	if !d.listed {
		d.fault(n.Line, "policies", "is required; to delete all policies, write policies: []")
	}
}

// readRow reads the fields of a row, and reports whether it is a mapping.
func readRow[T any](d *document, n *yaml.Node, at place, fields []schema.Field[T], row *T) bool {
	if n.Kind != yaml.MappingNode {
		d.fault(n.Line, at.path, "must be a mapping")
		return false
	}
	values := map[string]json.RawMessage{}
	for pair := range slices.Chunk(n.Content, 2) {
		key := pair[0]
		path := at.path + "." + key.Value
		_, twice := at.fields[key.Value]
		switch {
		case !slices.ContainsFunc(fields, func(f schema.Field[T]) bool { return f.Name == key.Value }):
			d.fault(key.Line, path, "unknown field: it may be one of %s", fieldNames(fields))
		case twice:
			d.fault(key.Line, path, "appears twice")
		default:
			at.fields[key.Value] = key.Line
			value, err := jsonOf(aliased(pair[1]))
			if err != nil {
				text := strings.TrimPrefix(err.Error(), "yaml: ")
				d.fault(key.Line, path, "%s", strings.TrimPrefix(text, "unmarshal errors:\n  "))
				continue
			}
			values[key.Value] = value
		}
	}
	raw, err := json.Marshal(values)
	if err != nil {
		d.fault(at.line, at.path, "%v", err)
	}
	for _, f := range schema.Decode(raw, fields, row, true) {
		d.fault(at.lineOf(f.Path), at.path+"."+f.Path, "%s", f.Message)
	}
	return true
}

// jsonOf returns a value as JSON. A scalar that JSON has no form for is a text, such as one that looks like a time. The
// error is of a list or a mapping, such as one with a key twice.
func jsonOf(n *yaml.Node) (json.RawMessage, error) {
	var value any
	err := n.Decode(&value)
	if err == nil && n.ShortTag() != "!!timestamp" {
		if raw, err := json.Marshal(value); err == nil {
			return raw, nil
		}
		err = errors.New("names must be strings, which may need quotes, and numbers finite")
	}
	if n.Kind != yaml.ScalarNode {
		return nil, err
	}
	return json.Marshal(n.Value)
}

func fieldNames[T any](fields []schema.Field[T]) string {
	names := make([]string, len(fields))
	for i, f := range fields {
		names[i] = f.Name
	}
	return strings.Join(names, ", ")
}

func (d *document) value(n *yaml.Node, line int, path string, to any) {
	switch to := to.(type) {
	case *string:
		if *to = n.Value; n.Kind != yaml.ScalarNode || n.ShortTag() != "!!str" {
			d.fault(line, path, "must be a string; quote it if it looks like another type")
		}
	case *bool:
		if n.ShortTag() != "!!bool" || n.Decode(to) != nil {
			d.fault(line, path, "must be true or false")
		}
	}
}

// checkTogether returns what nodes would leave out of the rows beside each other, such as patterns that are ambiguous.
func (d *document) checkTogether() {
	var rows policy.Rows
	for i, p := range d.set.Policies {
		rows.Policies = append(rows.Policies, policy.PolicyRow{ID: int64(i + 1), Policy: p.Policy})
	}
	for i, cost := range d.set.Costs {
		rows.Costs = append(rows.Costs, policy.CostRow{ID: int64(i + 1), Cost: cost.Cost})
	}
	for i, o := range d.set.Overrides {
		o.Author = "document"
		rows.Overrides = append(rows.Overrides, policy.Override{ID: int64(i + 1), Override: o.Override})
	}
	_, faults := policy.NewSnapshot(rows, nil)
	for _, f := range faults {
		places := d.places[f.Table]
		i, err := strconv.Atoi(f.Key)
		if err != nil || i < 1 || i > len(places) {
			d.fault(1, f.Table, "%v", f)
			continue
		}
		at := places[i-1]
		d.fault(at.lineOf(f.Field), at.path+"."+f.Field, "%s", f.Problem)
	}
}

// replaceIn replaces the policies of the document's namespace in rows, as apply does in the database. They get ids of
// their own.
func (d *document) replaceIn(rows *policy.Rows) {
	namespace, id := cmp.Or(d.set.Namespace, "default"), int64(0)
	replaced := func(p policy.PolicyRow) bool { return p.Namespace == namespace && !d.partial }
	rows.Policies = slices.DeleteFunc(rows.Policies, replaced)
	for _, row := range rows.Policies {
		id = max(id, row.ID)
	}
	for _, p := range d.set.Policies {
		id++
		p.Namespace = namespace
		rows.Policies = append(rows.Policies, policy.PolicyRow{ID: id, Policy: p.Policy})
	}
}

// lineOf returns the line of the field of a path, or that of the row when the field is not there.
func (at place) lineOf(path string) int {
	field, _, _ := strings.Cut(path, ".")
	if line, ok := at.fields[field]; ok {
		return line
	}
	return at.line
}

// locateProblem returns the faults of a body in the form of the document with their places in it. Others stay.
func (d *document) locateProblem(err error) error {
	p := answers.ProblemOf(err)
	if p == nil || p.Status != http.StatusUnprocessableEntity {
		return err
	}
	all := slices.Concat(slices.Collect(maps.Values(d.places))...)
	var faults []error
	for _, f := range p.Errors {
		path, _ := strings.CutPrefix(f.Location, "body.")
		i := slices.IndexFunc(all, func(at place) bool { return strings.HasPrefix(path+".", at.path+".") })
		switch {
		case i >= 0:
			at := all[i]
			faults = append(faults, d.at(at.lineOf(strings.TrimPrefix(path, at.path+".")), path, f.Message))
		case path == "body":
			faults = append(faults, d.at(0, "", f.Message))
		default:
			return err
		}
	}
	return errors.Join(faults...)
}
