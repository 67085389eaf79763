package replay

import (
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"net/textproto"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
)

// csvParser reads comma-separated values below a line with the names of the columns. A field may be in quotes, with two
// quotes for one; it has no line break.
type csvParser struct{ *fields }

// The columns. Others are consumer.tag.<key> and header.<Name>.
const (
	startedColumn = "started_at"
	tenantColumn  = "tenant"
	tagColumn     = "consumer.tag."
	headerColumn  = "header."
)

var (
	plainColumns    = []string{startedColumn, "method", "path", "ip", "credential", "status"}
	routeColumns    = []string{"route", "service"}
	callerColumns   = []string{tenantColumn, "user", "tier", "cost"}
	consumerColumns = []string{"consumer.id", "consumer.username", "consumer.custom_id"}
)

// isCSVHead reports whether a line names the columns of a log.
func isCSVHead(line string) bool {
	columns, err := splitCSV(line)
	return err == nil && slices.Contains(columns, startedColumn)
}

// newCSVParser returns the parser of a log with this line of columns.
func newCSVParser(head string) (*csvParser, error) {
	columns, err := splitCSV(head)
	if err != nil {
		return nil, fmt.Errorf("line 1: %w", err)
	}
	known, ofConsumer := slices.Concat(plainColumns, routeColumns, callerColumns, consumerColumns), false
	for i, name := range columns {
		isTag := strings.HasPrefix(name, tagColumn)
		switch {
		case slices.Contains(columns[:i], name):
			return nil, fmt.Errorf("line 1: column %q appears twice", name)
		case !isTag && !strings.HasPrefix(name, headerColumn) && !slices.Contains(known, name):
			return nil, fmt.Errorf("line 1: unknown column %q: the columns are %s, %s<key> and %s<Name>", name,
				strings.Join(known, ", "), tagColumn, headerColumn)
		}
		ofConsumer = ofConsumer || isTag || slices.Contains(consumerColumns, name)
	}
	if !slices.Contains(columns, startedColumn) {
		return nil, fmt.Errorf("line 1: the column %s is missing", startedColumn)
	}
	p := &csvParser{newFields(columns)}
	if p.statesTenants() && ofConsumer {
		return nil, fmt.Errorf("line 1: has a column %s beside columns of consumers: use either", tenantColumn)
	}
	return p, nil
}

// statesTenants reports whether the log names the tenant of each request, in place of what a gateway knows of it.
func (p *csvParser) statesTenants() bool { return slices.Contains(p.names, tenantColumn) }

// parse implements parser.
func (p *csvParser) parse(line []byte, add func() *Request) error {
	if bytes.IndexByte(line, 0) >= 0 {
		return errors.New("has a zero byte")
	}
	values, err := splitCSV(string(line))
	if err != nil {
		return err
	}
	if len(values) != len(p.names) {
		return fmt.Errorf("has %d fields, expected %d as in line 1", len(values), len(p.names))
	}
	r := add()
	for i, value := range values {
		if err := p.set(r, i, value); err != nil {
			return err
		}
	}
	p.finish(r)
	return nil
}

// fields sets requests to the values of lines. Their names are those of columns.
type fields struct {
	names   []string        // "": a field that is not read
	headers map[string]bool // that are among the fields, as HTTP spells them
	joined  []int           // the fields of a party
	values  []string        // of the line
	key     []byte          // of the line's party
	texts   *interner[string]
	parties *interner[*party]

	ofCaller, ofRoute bool // there are such fields
}

// party is who a request is from, and the route that it took.
type party struct {
	consumer *identity.Consumer // nil: none is named
	caller   identity.Caller
	route    Route
}

func newFields(names []string) *fields {
	f := &fields{names: names, headers: map[string]bool{}, values: make([]string, len(names)), texts: newNames()}
	f.parties = newInterner(f.party)
	for i, name := range names {
		header, isHeader := strings.CutPrefix(name, headerColumn)
		switch {
		case isHeader:
			header = textproto.CanonicalMIMEHeaderKey(header)
			names[i], f.headers[header] = headerColumn+header, true
		case name != "" && !slices.Contains(plainColumns, name):
			f.joined = append(f.joined, i)
			f.ofCaller = f.ofCaller || slices.Contains(callerColumns, name)
			f.ofRoute = f.ofRoute || slices.Contains(routeColumns, name)
		}
	}
	return f
}

// logsHeader implements parser.
func (f *fields) logsHeader(name string) bool { return f.headers[name] }

// set sets what field i says. finish must follow the last one.
func (f *fields) set(r *Request, i int, value string) (err error) {
	f.values[i] = value
	switch name := f.names[i]; name {
	case startedColumn:
		r.At, err = parseInstant(value)
	case "path":
		r.Target = strings.Clone(value)
	case "method":
		r.Method = f.texts.get([]byte(value))
	case "ip":
		r.IP = f.texts.get([]byte(value))
	case "credential":
		r.Credential = f.texts.get([]byte(value))
	case "status":
		if r.Status, err = strconv.Atoi(value); err != nil && value != "" {
			return fmt.Errorf("status: %.40q: must be a number, such as 200", value)
		}
		return nil
	case "cost":
		if n, err := strconv.ParseInt(value, 10, 64); value != "" && (err != nil || n < 0) {
			return fmt.Errorf("cost: %.40q: must be a whole number of tokens", value)
		}
	default:
		if header, ok := strings.CutPrefix(name, headerColumn); ok && value != "" {
			r.addHeader(header, f.texts.get([]byte(value)))
		}
	}
	return err
}

// finish sets who the request of the line is from, and its route.
func (f *fields) finish(r *Request) {
	f.key = f.key[:0]
	for _, i := range f.joined {
		f.key = append(append(f.key, f.values[i]...), 0)
	}
	p := f.parties.get(f.key)
	if r.Consumer = p.consumer; f.ofCaller {
		r.Caller = &p.caller
	}
	if f.ofRoute {
		r.Route = &p.route
	}
}

// party returns the party of the fields that finish has joined.
func (f *fields) party(key string) *party {
	p, values := new(party), strings.Split(key, "\x00")
	var consumer identity.Consumer
	for i, at := range f.joined {
		value := values[i]
		if value == "" {
			continue
		}
		switch name := f.names[at]; name {
		case "consumer.id":
			consumer.ID = value
		case "consumer.username":
			consumer.Username = value
		case "consumer.custom_id":
			consumer.CustomID = value
		case tenantColumn:
			p.caller.Tenant = value
		case "user":
			p.caller.User = value
		case "tier":
			p.caller.Tier = value
		case "cost":
			p.caller.Cost, _ = strconv.ParseInt(value, 10, 64) // set has checked it
		case "route":
			p.route.Name = value
		case "service":
			p.route.Service = value
		default:
			consumer.Tags = append(consumer.Tags, strings.TrimPrefix(name, tagColumn)+":"+value)
		}
	}
	if consumer.ID+consumer.Username+consumer.CustomID != "" || len(consumer.Tags) > 0 {
		p.consumer = &consumer
	}
	return p
}

// splitCSV returns the fields of a line.
func splitCSV(line string) ([]string, error) {
	r := csv.NewReader(strings.NewReader(line))
	r.TrimLeadingSpace = true
	fields, err := r.Read()
	for i := range fields {
		fields[i] = strings.TrimSpace(fields[i])
	}
	if fault := new(csv.ParseError); errors.As(err, &fault) {
		err = fault.Err
	}
	return fields, err
}

// parseInstant reads an instant: RFC 3339, or a number of seconds, milliseconds or microseconds since 1970. Of the
// numbers only one is within bounds.
func parseInstant(text string) (limit.Micros, error) {
	if at, err := time.Parse(time.RFC3339, strings.Replace(text, " ", "T", 1)); err == nil {
		return instant(float64(at.UnixMicro()))
	}
	n, err := strconv.ParseFloat(text, 64)
	if err == nil {
		for _, factor := range [...]float64{1e6, 1e3, 1} {
			if at, err := instant(n * factor); err == nil {
				return at, nil
			}
		}
	}
	return 0, fmt.Errorf("started_at: %.40q: must be a time with its zone such as 2026-01-31T12:00:00+01:00 (RFC 3339), "+
		"or a number of seconds, milliseconds or microseconds since 1970", text)
}
