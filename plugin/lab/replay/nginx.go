package replay

import (
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

// CombinedFormat is the log_format of nginx with the name combined.
const CombinedFormat = `$remote_addr - $remote_user [$time_local] "$request" $status $body_bytes_sent ` +
	`"$http_referer" "$http_user_agent"`

// nginxParser reads lines that nginx has written in a log_format.
type nginxParser struct {
	parts     []formatPart
	names     *interner[string]
	consumers *interner[*identity.Consumer] // by id, username and custom id
	headers   map[string]bool               // those that are read, and whether the format has them

	id, username, customID string       // of the line
	took                   limit.Micros // the request's duration, if the line has it: nginx logs at the end
	values                 []string     // of the variables in the line
	tries                  int          // of places at which values of the line may end
	scratch                Request
}

// formatPart is a variable of a log_format, and the text behind it.
type formatPart struct {
	variable string
	set      func(p *nginxParser, value string, r *Request) error // nil: the variable does not matter
	strict   bool                                                 // it is a time, a number or a request line
	until    string
}

// newNginxParser returns the parser of a log_format; "" is combined.
func newNginxParser(format string, headers []string) (*nginxParser, error) {
	if format == "" {
		format = CombinedFormat
	}
	p := &nginxParser{names: newNames(), headers: map[string]bool{}}
	p.consumers = newInterner(func(key string) *identity.Consumer {
		names := strings.Split(key, "\x00")
		return &identity.Consumer{ID: names[0], Username: names[1], CustomID: names[2]}
	})
	for _, name := range headers {
		p.headers[textproto.CanonicalMIMEHeaderKey(name)] = false
	}
	if err := p.compile(format); err != nil {
		return nil, fmt.Errorf("log_format %q: %w", format, err)
	}
	return p, nil
}

// compile splits a format at its variables. Its first part has no variable.
func (p *nginxParser) compile(format string) error {
	text, format, _ := strings.Cut(format, "$")
	p.parts = []formatPart{{until: text}}
	timed, requested := false, false
	for format != "" {
		name, behind := variableName(format)
		if name == "" {
			return errors.New("has a $ without the name of a variable")
		}
		until, after, more := strings.Cut(behind, "$")
		if until == "" && more {
			return fmt.Errorf("$%s stands right before another variable: nothing separates them", name)
		}
		p.parts = append(p.parts, formatPart{name, p.setter(name), slices.Contains(strictVariables, name), until})
		timed = timed || name == "time_local" || name == "time_iso8601" || name == "msec"
		requested = requested || name == "request" || name == "request_uri" || name == "uri"
		format = after
	}
	switch {
	case !timed:
		return errors.New("has no time: $msec, $time_iso8601 or $time_local is required")
	case !requested:
		return errors.New("has no path: $request or $request_uri is required")
	}
	return nil
}

// variableName cuts the name of a variable, which may be in braces, from a format.
func variableName(format string) (name, behind string) {
	if inner, ok := strings.CutPrefix(format, "{"); ok {
		name, behind, _ = strings.Cut(inner, "}")
		return name, behind
	}
	i := strings.IndexFunc(format, func(c rune) bool {
		return c != '_' && !('a' <= c && c <= 'z') && !('A' <= c && c <= 'Z') && !('0' <= c && c <= '9')
	})
	if i < 0 {
		i = len(format)
	}
	return format[:i], format[i:]
}

// Kong adds these headers for the upstream. They replace headers of the client.
const (
	consumerVariable   = "http_x_consumer_"
	credentialVariable = "http_x_credential_identifier"
)

// setter returns what a variable sets, or nil.
func (p *nginxParser) setter(name string) func(*nginxParser, string, *Request) error {
	switch name {
	case "msec":
		return func(_ *nginxParser, value string, r *Request) (err error) {
			seconds, err := strconv.ParseFloat(value, 64)
			if err == nil {
				r.At, err = instant(math.Round(seconds * 1e6))
			}
			return err
		}
	case "request_time":
		return func(p *nginxParser, value string, _ *Request) (err error) {
			seconds, err := strconv.ParseFloat(value, 64)
			if err == nil && !(seconds >= 0 && seconds < 1e7) {
				err = errors.New("must be a duration in seconds")
			}
			if err == nil {
				p.took = limit.Micros(seconds * 1e6)
			}
			return err
		}
	case "time_iso8601":
		return timeSetter(time.RFC3339)
	case "time_local":
		return timeSetter("02/Jan/2006:15:04:05 -0700")
	case "request":
		return setRequestLine
	case "status":
		return func(_ *nginxParser, value string, r *Request) (err error) {
			r.Status, err = strconv.Atoi(value)
			return err
		}
	case "request_uri", "uri":
		return func(_ *nginxParser, value string, r *Request) error {
			r.Target = unescapeNginx(value)
			return nil
		}
	}
	return p.nameSetter(name)
}

// nameSetter returns what a variable sets that has a name, or nil.
func (p *nginxParser) nameSetter(name string) func(*nginxParser, string, *Request) error {
	var to func(p *nginxParser, r *Request) *string
	switch name {
	case "remote_addr":
		to = func(_ *nginxParser, r *Request) *string { return &r.IP }
	case "request_method":
		to = func(_ *nginxParser, r *Request) *string { return &r.Method }
	case credentialVariable:
		to = func(_ *nginxParser, r *Request) *string { return &r.Credential }
	case consumerVariable + "id":
		to = func(p *nginxParser, _ *Request) *string { return &p.id }
	case "remote_user", consumerVariable + "username":
		to = func(p *nginxParser, _ *Request) *string { return &p.username }
	case "host":
		return p.headerSetter("http_host")
	case consumerVariable + "custom_id":
		to = func(p *nginxParser, _ *Request) *string { return &p.customID }
	default:
		return p.headerSetter(name)
	}
	return func(p *nginxParser, value string, r *Request) error {
		if value != "-" && value != "" {
			*to(p, r) = p.names.get([]byte(unescapeNginx(value)))
		}
		return nil
	}
}

// headerSetter returns what the variable of a header sets, or nil.
func (p *nginxParser) headerSetter(name string) func(*nginxParser, string, *Request) error {
	name, isHeader := strings.CutPrefix(name, "http_")
	name = textproto.CanonicalMIMEHeaderKey(strings.ReplaceAll(name, "_", "-"))
	if _, read := p.headers[name]; !isHeader || !read {
		return nil
	}
	p.headers[name] = true
	return func(p *nginxParser, value string, r *Request) error {
		if value != "-" && value != "" {
			r.addHeader(name, p.names.get([]byte(unescapeNginx(value))))
		}
		return nil
	}
}

// timeSetter returns what a time in a layout sets.
func timeSetter(layout string) func(*nginxParser, string, *Request) error {
	return func(_ *nginxParser, value string, r *Request) error {
		at, err := time.Parse(layout, value)
		if err != nil {
			return err
		}
		r.At, err = instant(float64(at.UnixMicro()))
		return err
	}
}

// setRequestLine sets method and target of a request line: GET /x?y HTTP/1.1.
func setRequestLine(p *nginxParser, value string, r *Request) error {
	method, target, ok := strings.Cut(unescapeNginx(value), " ")
	if !ok {
		return errors.New("is no request line")
	}
	if i := strings.LastIndex(target, " HTTP/"); i >= 0 {
		target = target[:i]
	}
	r.Method, r.Target = p.names.get([]byte(method)), target
	return nil
}

// logsHeader implements parser.
func (p *nginxParser) logsHeader(name string) bool { return p.headers[name] }

// parse implements parser.
func (p *nginxParser) parse(line []byte, add func() *Request) error {
	text, ok := strings.CutPrefix(string(line), p.parts[0].until)
	if !ok {
		return fmt.Errorf("does not begin with %q, as log_format does", p.parts[0].until)
	}
	r := add()
	p.values, p.tries = p.values[:0], 0
	if err := p.split(text, p.parts[1:]); err != nil {
		return err
	}
	p.id, p.username, p.customID, p.took = "", "", "", 0
	for i, part := range p.parts[1:] {
		if part.set != nil {
			if err := part.set(p, p.values[i], r); err != nil {
				return part.fault(p.values[i], err)
			}
		}
	}
	r.At -= p.took
	if p.id+p.username+p.customID != "" {
		r.Consumer = p.consumers.get([]byte(p.id + "\x00" + p.username + "\x00" + p.customID))
	}
	return nil
}

// strictVariables are those whose values show whether a line was cut at the right places.
var strictVariables = []string{"msec", "request_time", "time_iso8601", "time_local", "request", "status"}

// maxTries bounds how many places are tried in a line.
const maxTries = 100

// split cuts a line into the values of parts. A value may hold the text behind its variable, such as a name with a
// bracket: then a later place counts, from which on the strict variables are right.
func (p *nginxParser) split(text string, parts []formatPart) error {
	if len(parts) == 0 {
		return nil
	}
	part, before := &parts[0], len(p.values)
	var fault error // of the first place
	for from := 0; ; {
		end, next := len(text), len(text)
		if part.until != "" {
			if end = indexUnescaped(text, part.until, from); end < 0 {
				break
			}
			next = end + len(part.until)
		}
		p.tries++
		err := part.check(p, text[:end])
		if err == nil {
			p.values = append(p.values[:before], text[:end])
			if err = p.split(text[next:], parts[1:]); err == nil {
				return nil
			}
		}
		if fault == nil {
			fault = err
		}
		if part.until == "" || p.tries > maxTries {
			break
		}
		from = end + 1
	}
	if fault == nil {
		fault = fmt.Errorf("has no %q behind $%s, as log_format has", part.until, part.variable)
	}
	return fault
}

// check finds the fault of a strict variable's value.
func (f *formatPart) check(p *nginxParser, value string) error {
	if !f.strict {
		return nil
	}
	p.scratch.reset()
	if err := f.set(p, value, &p.scratch); err != nil {
		return f.fault(value, err)
	}
	return nil
}

func (f *formatPart) fault(value string, err error) error {
	return fmt.Errorf("$%s: %.80q: %w", f.variable, value, err)
}

// indexUnescaped returns the place of a text from an index on, or -1. A quote behind a backslash, as escape=json writes
// it, is part of a value.
func indexUnescaped(text, part string, from int) int {
	for {
		i := strings.Index(text[from:], part)
		if i < 0 {
			return -1
		}
		i += from
		escapes := len(text[:i]) - len(strings.TrimRight(text[:i], `\`))
		if part[0] != '"' || escapes%2 == 0 {
			return i
		}
		from = i + 1
	}
}

// unescapeNginx replaces the escapes of nginx: \x22, or with escape=json those of JSON.
func unescapeNginx(text string) string {
	if strings.IndexByte(text, '\\') < 0 {
		return text
	}
	var b strings.Builder
	for len(text) > 0 {
		size, char := 1, text[0]
		switch {
		case len(text) < 2 || char != '\\':
		case text[1] == 'x' && len(text) >= 4:
			if n, err := strconv.ParseUint(text[2:4], 16, 8); err == nil {
				size, char = 4, byte(n)
			}
		case text[1] == 'u' && len(text) >= 6:
			if n, err := strconv.ParseUint(text[2:6], 16, 8); err == nil { // nginx writes control characters so
				size, char = 6, byte(n)
			}
		default:
			if i := strings.IndexByte(`"\/bfnrt`, text[1]); i >= 0 {
				size, char = 2, "\"\\/\b\f\n\r\t"[i]
			}
		}
		b.WriteByte(char)
		text = text[size:]
	}
	return b.String()
}
