package replay

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"net/textproto"
	"regexp"
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
	line      *regexp.Regexp
	variables []variable // by the groups of line
	names     *interner[string]
	consumers *interner[*identity.Consumer] // by id, username and custom id
	headers   map[string]bool               // those that are read, and whether the format has them

	id, username, customID string       // of the line
	took                   limit.Micros // the request's duration, if the line has it: nginx logs at the end
}

// variable is a variable of a log_format that says something about a request.
type variable struct {
	name string
	set  func(p *nginxParser, value string, r *Request) error
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

// strictVariables are those whose values show where the values before them end: a name may hold what separates them.
var strictVariables = map[string]string{
	"msec": `[0-9.]+`, "request_time": `[0-9.]+`, "status": `[0-9]+`, "request": `\S+ .*?`,
	"time_iso8601": `[0-9T:Z+-]+`, "time_local": `[0-9]{2}/[A-Z][a-z]{2}/[0-9]{4}:[0-9:]{8} [+-][0-9]{4}`,
}

// anyValue matches any value as short as possible. It does not end behind a backslash, as escape=json writes quotes.
const anyValue = `(?:\\.|[^\\])*?`

// compile makes the expression of a line.
func (p *nginxParser) compile(format string) error {
	text, format, _ := strings.Cut(format, "$")
	pattern := `(?s)^` + regexp.QuoteMeta(text)
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
		value := cmp.Or(strictVariables[name], anyValue)
		if set := p.setter(name); set != nil {
			p.variables = append(p.variables, variable{name, set})
			value = "(" + value + ")"
		}
		pattern += value + regexp.QuoteMeta(until)
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
	var err error
	p.line, err = regexp.Compile(pattern + `$`)
	return err
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
	values := p.line.FindStringSubmatch(string(line))
	if values == nil {
		return errors.New("is not in the log_format")
	}
	r := add()
	p.id, p.username, p.customID, p.took = "", "", "", 0
	for i, v := range p.variables {
		if err := v.set(p, values[i+1], r); err != nil {
			return fmt.Errorf("$%s: %.80q: %w", v.name, values[i+1], err)
		}
	}
	r.At -= p.took
	if p.id+p.username+p.customID != "" {
		r.Consumer = p.consumers.get([]byte(p.id + "\x00" + p.username + "\x00" + p.customID))
	}
	return nil
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
