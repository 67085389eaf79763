package replay

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
)

// CombinedFormat is the log_format of nginx with the name combined.
const CombinedFormat = `$remote_addr - $remote_user [$time_local] "$request" $status $body_bytes_sent ` +
	`"$http_referer" "$http_user_agent"`

type nginxParser struct {
	*fields

	line      *regexp.Regexp
	variables []string // by the groups of line
}

// newNginxParser returns the parser of a log_format; "" is combined.
func newNginxParser(format string, headers []string) (*nginxParser, error) {
	format = cmp.Or(format, CombinedFormat)
	p := &nginxParser{}
	if err := p.compile(format, headers); err != nil {
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

func (p *nginxParser) compile(format string, headers []string) error {
	text, format, _ := strings.Cut(format, "$")
	pattern := `(?s)^` + regexp.QuoteMeta(text)
	timed, requested, fields := false, false, []string(nil)
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
		if field := fieldOf(name, headers); field != "" || name == "request" || name == "request_time" {
			p.variables, fields = append(p.variables, name), append(fields, field)
			value = "(" + value + ")"
		}
		pattern += value + regexp.QuoteMeta(until)
		timed = timed || nginxFields[name] == startedColumn
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
	p.fields = newFields(fields)
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

// nginxFields maps variables to fields. Kong adds some of these headers for the upstream, in place of the client's.
var nginxFields = map[string]string{
	"msec": startedColumn, "time_iso8601": startedColumn, "time_local": startedColumn,
	"remote_addr": "ip", "request_method": "method", "request_uri": "path", "uri": "path", "status": "status",
	"remote_user": "consumer.username", "http_x_consumer_username": "consumer.username",
	"http_x_consumer_id": "consumer.id", "http_x_consumer_custom_id": "consumer.custom_id",
	"http_x_credential_identifier": "credential",
}

// fieldOf returns the field that a variable has, or "". Of headers only some are read.
func fieldOf(variable string, headers []string) string {
	if variable == "host" {
		variable = "http_host"
	}
	name, isHeader := strings.CutPrefix(variable, "http_")
	name = strings.ReplaceAll(name, "_", "-")
	isRead := func(header string) bool { return strings.EqualFold(header, name) }
	if field := nginxFields[variable]; field != "" || !isHeader || !slices.ContainsFunc(headers, isRead) {
		return field
	}
	return headerColumn + name
}

// setRequestLine sets method and target of a request line: GET /x?y HTTP/1.1.
func (r *Request) setRequestLine(line string) error {
	method, target, ok := strings.Cut(line, " ")
	if !ok {
		return errors.New("is no request line")
	}
	if i := strings.LastIndex(target, " HTTP/"); i >= 0 {
		target = target[:i]
	}
	r.Method, r.Target = interned(method), strings.Clone(target)
	return nil
}

func (p *nginxParser) parse(line []byte) ([]*Request, error) {
	values := p.line.FindStringSubmatch(string(line))
	if values == nil {
		return nil, errors.New("is not in the log_format")
	}
	r, took := p.newRequest(), 0.0
	for i, value := range values[1:] {
		var err error
		switch name := p.variables[i]; {
		case name == "request":
			err = r.setRequestLine(unescapeNginx(value))
		case name == "request_time":
			if took, err = strconv.ParseFloat(value, 64); err == nil && !(took >= 0 && took < 1e7) {
				err = errors.New("must be a duration in seconds")
			}
		case value != "-" && value != "" || p.names[i] == "path":
			err = p.set(r, i, unescapeNginx(value))
		}
		if err != nil {
			return nil, fmt.Errorf("$%s: %.80q: %w", p.variables[i], value, err)
		}
	}
	r.At -= limit.Micros(took * 1e6) // nginx logs at the end
	return p.finish(r), nil
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
