package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/observe/jsonline"
)

// The formats of output.
const (
	formatTable = "table"
	formatJSON  = "json"
	formatYAML  = "yaml"
	formatCSV   = "csv"
)

func (c *call) outputFlag() { c.outputFlagOf(formatTable, formatJSON, formatYAML) }

// outputFlagOf defines --output with formats, of which the first is the default.
func (c *call) outputFlagOf(formats ...string) {
	c.choiceFlag(&c.format, "output", "o", "the output `format`", formats...)
}

// choiceFlag defines the flag of one of several values, of which the first is the default. It leaves to as it is where
// the flag is not given.
func (c *call) choiceFlag(to *string, name, short, usage string, values ...string) {
	list := strings.Join(values[:len(values)-1], ", ") + " or " + values[len(values)-1]
	c.flags.FuncP(name, short, usage+": "+list+" (default "+values[0]+")", func(text string) error {
		if !slices.Contains(values, text) {
			return errors.New("must be " + list)
		}
		*to = text
		return nil
	})
	c.complete(name, values...)
}

// print writes a value as JSON, as YAML of the same fields, or as the page that people read; nil: that of the fields.
func (c *call) print(value any, asText func(*page)) error {
	switch c.format {
	case formatJSON:
		return writeJSON(c.stdout, value)
	case formatYAML:
		return writeYAML(c.stdout, value)
	}
	p := new(page)
	if asText == nil {
		p.show(value)
	} else {
		asText(p)
	}
	return p.write(c.stdout)
}

// writeJSON writes a document. What a terminal would obey is escaped, which JSON reads as the same.
func writeJSON(w io.Writer, value any) error {
	text, err := jsonText(value, "")
	return writeText(w, text+"\n", err)
}

// writeText writes a text to the output, unless making it has failed.
func writeText(w io.Writer, text string, err error) error {
	if err == nil {
		_, err = io.WriteString(w, text)
	}
	if err != nil {
		return fmt.Errorf("write the output: %w", err)
	}
	return nil
}

// jsonText returns a value as JSON whose lines but the first begin with prefix.
func jsonText(value any, prefix string) (string, error) {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetIndent(prefix, "  ")
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(value)
	return string(jsonline.Escape(bytes.TrimSuffix(b.Bytes(), []byte("\n")))), err
}

// page is text for people, made of lines. Names in it come from rows and requests, so every line is made plain: no name
// can begin a line of its own, or reach the terminal as a control sequence.
type page struct {
	text strings.Builder
	err  error // of a value that could not be shown
}

func (p *page) line(format string, args ...any) {
	p.text.WriteString(plainText(fmt.Sprintf(format, args...)) + "\n")
}

// marked adds one line that stands out on a terminal.
func (p *page) marked(mark rune, format string, args ...any) {
	p.text.WriteString(string(mark) + plainText(fmt.Sprintf(format, args...)) + string(endMark) + "\n")
}

func (p *page) gap() { p.text.WriteString("\n") }

func (p *page) write(w io.Writer) error {
	if p.err != nil {
		return p.err
	}
	return writeText(w, p.text.String(), nil)
}

// screen is the writer of all that the program shows. It replaces what a terminal would obey: the last line of defence
// behind [page] and [writeJSON].
type screen struct {
	to     io.Writer
	before string // a control sequence of the program itself, sent before each write
	color  bool   // it shows colors
}

// Write writes text, which must not end within a character.
func (s screen) Write(text []byte) (int, error) {
	plain := strings.Map(func(r rune) rune {
		if r == '\n' || isMark(r) {
			return r
		}
		return printable(r)
	}, string(text))
	marks := withoutColor
	if s.color {
		marks = withColor
	}
	plain = marks.Replace(plain)
	if _, err := io.WriteString(s.to, s.before+plain); err != nil {
		return 0, err
	}
	return len(text), nil
}

// printable returns r, or a replacement for what a terminal would obey or not show.
func printable(r rune) rune {
	if unicode.IsPrint(r) {
		return r
	}
	return unicode.ReplacementChar
}

// breaks matches tabs and line breaks, with the white space around them.
var breaks = regexp.MustCompile(
	`[\t-\r\x{85}\x{2028}\x{2029} ]*[\t-\r\x{85}\x{2028}\x{2029}][\t-\r\x{85}\x{2028}\x{2029} ]*`,
)

// plainText returns a text in one line: blanks are kept, and tabs and line breaks become one blank. It replaces what a
// terminal would obey, because names come from requests.
func plainText(text string) string {
	text = strings.Trim(text, "\t\n\v\f\r\u0085\u2028\u2029")
	return strings.Map(printable, breaks.ReplaceAllString(text, " "))
}

// timeText returns an instant in a table.
func timeText(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}

// counted returns a number of things: 1 node, 2 nodes.
func counted[N int | int64](n N, thing string) string { return plural(n, thing, thing+"s") }

// plural returns a number of things that have a plural of their own: 1 policy, 2 policies.
func plural[N int | int64](n N, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// Marks of colored text within a page. They are in Unicode's private use area, which plainText replaces, so no name can
// hold one. A screen writes them as control sequences, or leaves them out.
const (
	redMark    = '\ue000'
	yellowMark = '\ue001'
	endMark    = '\ue002'
)

var (
	withColor = strings.NewReplacer(
		string(redMark), "\x1b[31m", string(yellowMark), "\x1b[33m", string(endMark), "\x1b[0m",
	)
	withoutColor = strings.NewReplacer(string(redMark), "", string(yellowMark), "", string(endMark), "")
)

func isMark(r rune) bool { return redMark <= r && r <= endMark }

// cellWidth returns how many columns a cell takes.
func cellWidth(cell string) int {
	width := utf8.RuneCountInString(cell)
	for _, r := range cell {
		if isMark(r) {
			width--
		}
	}
	return width
}

// wantsColor reports whether output is to be colored: it goes to a terminal that shows colors, and NO_COLOR
// (https://no-color.org) is not set.
func wantsColor(to io.Writer, getenv func(string) string) bool {
	return screen{to: to}.isTerminal() && allowsColor(getenv("NO_COLOR"), getenv("TERM"))
}

func allowsColor(noColor, terminal string) bool {
	return noColor == "" && terminal != "" && terminal != "dumb"
}

// isTerminal reports whether the screen is a terminal, and not a file or a pipe.
func (s screen) isTerminal() bool {
	file, ok := s.to.(*os.File)
	if !ok {
		return false
	}
	about, err := file.Stat()
	return err == nil && about.Mode()&os.ModeCharDevice != 0
}
