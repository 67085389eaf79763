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
type csvParser struct {
	columns []string
	fields  []string
	names   *interner[string]
	headers map[string]bool // that have a column, as HTTP spells them
	key     []byte

	ofConsumer, ofCaller, ofRoute []int // indexes of columns
	consumers                     *interner[*identity.Consumer]
	callers                       *interner[*identity.Caller]
	routes                        *interner[*Route]
}

// The columns. Others are consumer.tag.<key> and header.<Name>.
const (
	startedColumn = "started_at"
	pathColumn    = "path"
	tenantColumn  = "tenant"
	costColumn    = "cost"
)

var (
	plainColumns    = []string{startedColumn, "method", pathColumn, "ip", "credential", "status"}
	routeColumns    = []string{"route", "service"}
	callerColumns   = []string{tenantColumn, "user", "tier", costColumn}
	consumerColumns = []string{"consumer.id", "consumer.username", "consumer.custom_id"}
)

const (
	tagColumn    = "consumer.tag."
	headerColumn = "header."
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
	p := &csvParser{columns: columns, names: newNames(), headers: map[string]bool{}}
	for i, name := range p.columns {
		switch {
		case slices.Contains(p.columns[:i], name):
			return nil, fmt.Errorf("line 1: column %q appears twice", name)
		case slices.Contains(plainColumns, name):
		case strings.HasPrefix(name, headerColumn):
			p.headers[textproto.CanonicalMIMEHeaderKey(name[len(headerColumn):])] = true
		case slices.Contains(routeColumns, name):
			p.ofRoute = append(p.ofRoute, i)
		case slices.Contains(callerColumns, name):
			p.ofCaller = append(p.ofCaller, i)
		case slices.Contains(consumerColumns, name), strings.HasPrefix(name, tagColumn):
			p.ofConsumer = append(p.ofConsumer, i)
		default:
			return nil, fmt.Errorf("line 1: unknown column %q: the columns are %s, %s<key> and %s<Name>", name,
				strings.Join(slices.Concat(plainColumns, routeColumns, callerColumns, consumerColumns), ", "),
				tagColumn, headerColumn)
		}
	}
	if !slices.Contains(p.columns, startedColumn) {
		return nil, fmt.Errorf("line 1: the column %s is missing", startedColumn)
	}
	if p.statesTenants() && len(p.ofConsumer) > 0 {
		return nil, fmt.Errorf("line 1: has a column %s beside columns of consumers: use either", tenantColumn)
	}
	p.consumers, p.callers = newInterner(p.consumer), newInterner(p.caller)
	p.routes = newInterner(p.route)
	return p, nil
}

// statesTenants reports whether the log names the tenant of each request, in place of what a gateway knows of it.
func (p *csvParser) statesTenants() bool { return slices.Contains(p.columns, tenantColumn) }

// logsHeader implements parser.
func (p *csvParser) logsHeader(name string) bool { return p.headers[name] }

// parse implements parser.
func (p *csvParser) parse(line []byte, add func() *Request) (err error) {
	if bytes.IndexByte(line, 0) >= 0 {
		return errors.New("has a zero byte")
	}
	if p.fields, err = splitCSV(string(line)); err != nil {
		return err
	}
	if len(p.fields) != len(p.columns) {
		return fmt.Errorf("has %d fields, expected %d as in line 1", len(p.fields), len(p.columns))
	}
	r := add()
	for i, field := range p.fields {
		if err := p.set(r, p.columns[i], field); err != nil {
			return err
		}
	}
	if len(p.ofConsumer) > 0 {
		r.Consumer = p.consumers.get(p.join(p.ofConsumer))
	}
	if len(p.ofCaller) > 0 {
		r.Caller = p.callers.get(p.join(p.ofCaller))
	}
	if len(p.ofRoute) > 0 {
		r.Route = p.routes.get(p.join(p.ofRoute))
	}
	return nil
}

// set sets what a plain column or a header says.
func (p *csvParser) set(r *Request, name, field string) (err error) {
	switch name {
	case startedColumn:
		r.At, err = parseInstant(field)
	case pathColumn:
		r.Target = strings.Clone(field)
	case "method":
		r.Method = p.names.get([]byte(field))
	case "ip":
		r.IP = p.names.get([]byte(field))
	case "credential":
		r.Credential = p.names.get([]byte(field))
	case "status":
		if r.Status, err = strconv.Atoi(field); err != nil && field != "" {
			return fmt.Errorf("status: %.40q: must be a number, such as 200", field)
		}
		return nil
	case costColumn:
		if n, err := strconv.ParseInt(field, 10, 64); field != "" && (err != nil || n < 0) {
			return fmt.Errorf("cost: %.40q: must be a whole number of tokens", field)
		}
	default:
		if header, ok := strings.CutPrefix(name, headerColumn); ok && field != "" {
			r.addHeader(textproto.CanonicalMIMEHeaderKey(header), p.names.get([]byte(field)))
		}
	}
	return err
}

// join joins the fields of columns to a key.
func (p *csvParser) join(columns []int) []byte {
	p.key = p.key[:0]
	for _, i := range columns {
		p.key = append(append(p.key, p.fields[i]...), 0)
	}
	return p.key
}

// each calls visit with the names and fields of columns that join has joined.
func (p *csvParser) each(columns []int, key string, visit func(name, field string)) {
	fields := strings.Split(key, "\x00")
	for i, column := range columns {
		if fields[i] != "" {
			visit(p.columns[column], fields[i])
		}
	}
}

func (p *csvParser) consumer(key string) *identity.Consumer {
	c := new(identity.Consumer)
	p.each(p.ofConsumer, key, func(name, field string) {
		switch name {
		case "consumer.id":
			c.ID = field
		case "consumer.username":
			c.Username = field
		case "consumer.custom_id":
			c.CustomID = field
		default:
			c.Tags = append(c.Tags, strings.TrimPrefix(name, tagColumn)+":"+field)
		}
	})
	return c
}

func (p *csvParser) caller(key string) *identity.Caller {
	c := new(identity.Caller)
	p.each(p.ofCaller, key, func(name, field string) {
		switch name {
		case tenantColumn:
			c.Tenant = field
		case "user":
			c.User = field
		case "tier":
			c.Tier = field
		default:
			c.Cost, _ = strconv.ParseInt(field, 10, 64) // set has checked it
		}
	})
	return c
}

func (p *csvParser) route(key string) *Route {
	r := new(Route)
	p.each(p.ofRoute, key, func(name, field string) {
		if name == "service" {
			r.Service = field
		} else {
			r.Name = field
		}
	})
	return r
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
