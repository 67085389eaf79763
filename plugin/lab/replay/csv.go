package replay

import (
	"encoding/csv"
	"errors"
	"fmt"
	"math"
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
type csvParser struct {
	*fields
	head string // the line of columns
}

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

func isCSVHead(line string) bool {
	columns, err := splitCSV(line)
	return err == nil && slices.Contains(columns, startedColumn)
}

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
	p := &csvParser{newFields(columns), head}
	if p.statesTenants() && ofConsumer {
		return nil, fmt.Errorf("line 1: has a column %s beside columns of consumers: use either", tenantColumn)
	}
	return p, nil
}

// statesTenants reports whether the log names the tenant of each request, in place of what a gateway knows of it.
func (p *csvParser) statesTenants() bool { return slices.Contains(p.names, tenantColumn) }

func (p *csvParser) parse(line []byte) ([]*Request, error) {
	if string(line) == p.head {
		return nil, nil
	}
	values, err := splitCSV(string(line))
	if err != nil {
		return nil, err
	}
	if len(values) != len(p.names) {
		return nil, fmt.Errorf("has %d fields, expected %d as in line 1", len(values), len(p.names))
	}
	r := p.newRequest()
	for i, value := range values {
		if err := p.set(r, i, value); err != nil {
			return nil, err
		}
	}
	return p.finish(r), nil
}

// fields sets requests to the values of lines. Their names are those of columns.
type fields struct {
	names   []string        // "": a field that is not read
	headers map[string]bool // that are among the fields, as HTTP spells them

	ofCaller, ofRoute bool // there are such fields
}

func newFields(names []string) *fields {
	f := &fields{names: names, headers: map[string]bool{}}
	for i, name := range names {
		if header, isHeader := strings.CutPrefix(name, headerColumn); isHeader {
			header = textproto.CanonicalMIMEHeaderKey(header)
			names[i], f.headers[header] = headerColumn+header, true
		}
		f.ofCaller = f.ofCaller || slices.Contains(callerColumns, name)
		f.ofRoute = f.ofRoute || slices.Contains(routeColumns, name)
	}
	return f
}

func (f *fields) logsHeader(name string) bool { return f.headers[name] }

// textColumns are the columns with a text of a request.
var textColumns = map[string]func(*Request) *string{
	"method":             func(r *Request) *string { return &r.Method },
	"ip":                 func(r *Request) *string { return &r.IP },
	"credential":         func(r *Request) *string { return &r.Credential },
	"route":              func(r *Request) *string { return &r.Route.Name },
	"service":            func(r *Request) *string { return &r.Route.Service },
	tenantColumn:         func(r *Request) *string { return &r.Caller.Tenant },
	"user":               func(r *Request) *string { return &r.Caller.User },
	"tier":               func(r *Request) *string { return &r.Caller.Tier },
	"consumer.id":        func(r *Request) *string { return &r.Consumer.ID },
	"consumer.username":  func(r *Request) *string { return &r.Consumer.Username },
	"consumer.custom_id": func(r *Request) *string { return &r.Consumer.CustomID },
}

// set sets what field i says. finish must follow the last one.
func (f *fields) set(r *Request, i int, value string) (err error) {
	name := f.names[i]
	if text := textColumns[name]; text != nil {
		*text(r) = interned(value)
		return nil
	}
	header, isHeader := strings.CutPrefix(name, headerColumn)
	switch {
	case name == startedColumn:
		r.At, err = parseInstant(value)
	case name == "path":
		r.Target = strings.Clone(value)
	case value == "":
	case name == "status":
		if r.Status, err = strconv.Atoi(value); err != nil {
			return fmt.Errorf("status: %.40q: must be a number, such as 200", value)
		}
	case name == "cost":
		if r.Caller.Cost, err = strconv.ParseInt(value, 10, 64); err != nil || r.Caller.Cost < 0 {
			return fmt.Errorf("cost: %.40q: must be a whole number of tokens", value)
		}
	case isHeader:
		r.addHeader(header, interned(value))
	default:
		r.Consumer.Tags = append(r.Consumer.Tags, interned(strings.TrimPrefix(name, tagColumn)+":"+value))
	}
	return err
}

// newRequest returns a request whose fields can be set.
func (f *fields) newRequest() *Request {
	r := &Request{Consumer: new(identity.Consumer)}
	if f.ofCaller {
		r.Caller = new(identity.Caller)
	}
	if f.ofRoute {
		r.Route = new(Route)
	}
	return r
}

// finish returns the request of a line once its fields are set.
func (f *fields) finish(r *Request) []*Request {
	if c := r.Consumer; c.ID+c.Username+c.CustomID == "" && len(c.Tags) == 0 {
		r.Consumer = nil
	}
	return []*Request{r}
}

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

// parseInstant reads an instant: RFC 3339, the local time of nginx, or a number of seconds, milliseconds or
// microseconds since 1970. Of the numbers only one is within bounds.
func parseInstant(text string) (limit.Micros, error) {
	for _, layout := range [...]string{time.RFC3339, "2006-01-02 15:04:05Z07:00", "02/Jan/2006:15:04:05 -0700"} {
		if at, err := time.Parse(layout, text); err == nil {
			return instant(float64(at.UnixMicro()))
		}
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

// The instants that a log may have: from 1980 to 2262. Others are mistakes.
const (
	earliest = 315532800e6
	latest   = 9214646400e6
)

func instant(us float64) (limit.Micros, error) {
	if !(us >= earliest && us <= latest) { // NaN fails too
		return 0, errors.New("started_at: must be an instant from 1980 to 2261")
	}
	return limit.Micros(math.Round(us)), nil
}
