package cli

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/node/process"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// defaultWait is how long --wait waits without a duration, as ?wait of the REST API does.
const defaultWait = api.DefaultWait

// maxSpan is the longest window of a limit, and more than an end should lie ahead.
const maxSpan = 100 * 366 * 24 * time.Hour

// parseSpan reads a length of time: 90s, 15m, 2h, 30d.
func parseSpan(text string, to *time.Duration) error {
	length, err := api.ParseDuration(text)
	switch {
	case err != nil || length <= 0:
		return errors.New("must be a duration above 0, such as 90s, 15m, 2h or 30d")
	case length > maxSpan:
		return errors.New("must be at most 36600d")
	}
	*to = length
	return nil
}

// parseWindow reads the length of a limit's window: a number of seconds, or a span of whole seconds.
func parseWindow(text string, seconds *int64) error {
	if parseCount(text, seconds) == nil {
		return nil
	}
	var span time.Duration
	if err := parseSpan(text, &span); err != nil || span%time.Second != 0 {
		return errors.New("must be a number of seconds above 0, or a duration of whole seconds, such as 60s, 24h or 30d")
	}
	*seconds = int64(span / time.Second)
	return nil
}

func parseInstant(text string, to *time.Time) (err error) {
	*to, err = schema.ParseTime(text)
	return err
}

// parsePast reads a time, or how long ago it was.
func (c *call) parsePast(text string, to *time.Time) error {
	var ago time.Duration
	if parseSpan(text, &ago) == nil {
		*to = c.now().Add(-ago)
		return nil
	}
	if parseInstant(text, to) != nil {
		return errors.New(schema.TimeForm + ", or a duration ago such as 2h or 30d")
	}
	return nil
}

// parseCount reads a whole number above 0.
func parseCount(text string, to *int64) error {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n <= 0 {
		return errors.New("must be a whole number above 0")
	}
	*to = n
	return nil
}

// wholeFlag defines the flag of a whole number from least to most.
func (c *call) wholeFlag(to *int, least, most int, name, usage string) {
	c.flags.Func(name, usage, func(text string) error {
		if err := process.ParseInt(text, 0, to); err != nil || *to < least || *to > most {
			return fmt.Errorf("must be a whole number from %d to %d", least, most)
		}
		return nil
	})
}

// reads returns what a flag does with its text: it reads a value.
func reads[T any](parse func(string, *T) error, to *T) func(string) error {
	return func(text string) error { return parse(text, to) }
}

// fieldFlags defines the flags of the fields of a row but for those with these names.
func fieldFlags[T any](c *call, row *T, except ...string) {
	fields := schema.FieldsWithout[T](except...)
	for i := range fields {
		fieldFlag(c, &fields[i], row)
	}
}

// fieldFlag defines the flag of a field of a row, with the description of its declaration. What is wrong with a number
// is reported here, where 0 is not yet absent.
func fieldFlag[T any](c *call, f *schema.Field[T], row *T) {
	name := flagName(f)
	usage := withPlaceholder(fieldUsage(f.Description), cmp.Or(f.Unit, f.Name))
	switch to := f.In(row).(type) {
	case *string:
		c.flags.Func(name, usage, func(text string) error {
			// An empty text names nothing: a script may have an empty variable there. A free text may be empty.
			if problem := f.Problem(""); text == "" && f.Unit != "text" && problem != "" {
				return errors.New(problem)
			}
			*to = text
			return nil
		})
		defined := c.flags.Lookup(name)
		defined.Value = namedValue{defined.Value, "string"}
	case *bool:
		c.flags.BoolVar(to, name, false, usage)
	case *int64:
		c.flags.Func(name, usage, func(text string) (err error) {
			*to, err = fieldNumber(f, text)
			return err
		})
	case *schema.Factor, *schema.Price: // decimals
		c.flags.Func(name, usage, func(text string) error {
			if len(schema.Decode([]byte(`{"`+f.Name+`":`+strconv.Quote(text)+`}`), []schema.Field[T]{*f}, row, false)) > 0 {
				return errors.New(f.Must())
			}
			return nil
		})
	case **int64:
		c.flags.Func(name, usage, func(text string) error {
			n, err := fieldNumber(f, text)
			*to = &n
			return err
		})
	default:
		record := schema.RecordIn(to)
		usage := fieldUsage(f.Description) + "; as `json`, or @FILE with it, such as " + record.Example
		c.flags.Func(name, usage, func(text string) error { return recordFlag(text, record) })
	}
	if len(f.OneOf) > 0 {
		c.complete(name, f.OneOf...)
	}
}

func flagName[T any](f *schema.Field[T]) string {
	return cmp.Or(f.Flag, strings.ReplaceAll(f.Name, "_", "-"))
}

// recordFlag reads a record: JSON, or the name of a file with it.
func recordFlag(text string, to *schema.RecordField) error {
	raw := []byte(text)
	if file, ok := strings.CutPrefix(text, "@"); ok {
		var err error
		if raw, err = os.ReadFile(file); err != nil {
			return err
		}
	}
	if faults := to.Parse(raw); len(faults) > 0 {
		return schema.Faults(faults)
	}
	return nil
}

// withPlaceholder marks the first use of a word in a usage before its default: help shows it as the flag's value.
func withPlaceholder(usage, word string) string {
	at := regexp.MustCompile(`\b` + regexp.QuoteMeta(word) + `\b`).FindStringIndex(usage)
	if at == nil || strings.Contains(usage[:at[0]], "(default: ") {
		return usage
	}
	usage = usage[:at[0]] + "`" + word + "`" + usage[at[1]:]
	return strings.Replace(usage, "`seconds`", "`seconds` or as a duration such as 24h", 1)
}

// fieldUsage returns the description of a field as other flags describe themselves: in lower case, with the default in
// parentheses.
func fieldUsage(description string) string {
	text := strings.TrimSuffix(strings.TrimSuffix(description, " Required."), ".")
	if usage, byDefault, found := strings.Cut(text, ". Default: "); found {
		text = usage + " (default: " + byDefault + ")"
	}
	return strings.ToLower(text[:1]) + text[1:]
}

// fieldNumber reads the number of a field; one of seconds may be a duration.
func fieldNumber[T any](f *schema.Field[T], text string) (int64, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	switch {
	case err != nil && f.Unit == "seconds":
		err = parseWindow(text, &n)
		return n, err
	case err != nil:
		return 0, errors.New("must be a whole number")
	}
	if problem := f.Problem(n); problem != "" {
		return 0, errors.New(problem)
	}
	return n, nil
}
