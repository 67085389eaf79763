package cli

import (
	"cmp"
	"errors"
	"os"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// fieldFlag defines the flag of a field of a row, with the description of its declaration. What is wrong with a number
// is reported here, where 0 is not yet absent.
func fieldFlag[T any](c *call, f *schema.Field[T], row *T) {
	name := flagName(f)
	usage := withPlaceholder(fieldUsage(f.Description), cmp.Or(f.Unit, f.Name))
	switch to := f.In(row).(type) {
	case *string:
		c.flags.Var(&textFlag{to: to, emptyProblem: emptyProblem(f)}, name, usage)
	case *bool:
		c.flags.BoolVar(to, name, false, usage)
	case *int64:
		c.flags.Func(name, usage, func(text string) (err error) {
			*to, err = fieldNumber(f, text)
			return err
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

// flagName returns the name of the flag of a field.
func flagName[T any](f *schema.Field[T]) string {
	return cmp.Or(f.Flag, strings.ReplaceAll(f.Name, "_", "-"))
}

// emptyProblem returns the fault of an empty text, which names nothing: a script may have an empty variable there. A
// free text may be empty.
func emptyProblem[T any](f *schema.Field[T]) string {
	if f.Unit == "text" {
		return ""
	}
	return f.Problem("")
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
	at := indexWord(usage, word)
	if at < 0 || strings.Contains(usage[:at], "(default: ") {
		return usage
	}
	usage = usage[:at] + "`" + word + "`" + usage[at+len(word):]
	return strings.Replace(usage, "`seconds`", "`seconds` or as a duration such as 24h", 1)
}

// indexWord returns the index of the first use of a word in a text, or -1. A part of another word is no use of it.
func indexWord(text, word string) int {
	inWord := func(r rune) bool { return r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r) }
	for at := 0; ; at++ {
		next := strings.Index(text[at:], word)
		if next < 0 {
			return -1
		}
		at += next
		before, _ := utf8.DecodeLastRuneInString(text[:at])
		after, _ := utf8.DecodeRuneInString(text[at+len(word):])
		if !inWord(before) && !inWord(after) {
			return at
		}
	}
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

// fieldNumber reads the number of a field; one of seconds may be a duration, and one of thousandths has decimals.
func fieldNumber[T any](f *schema.Field[T], text string) (n int64, err error) {
	if f.Unit == "thousandths" {
		n, err = schema.Thousandths(text)
	} else {
		n, err = strconv.ParseInt(text, 10, 64)
	}
	switch {
	case err != nil && f.Unit == "seconds":
		var w windowFlag
		err = w.Set(text)
		return w.seconds, err
	case err != nil && f.Unit == "thousandths":
		return 0, errors.New(f.Must())
	case err != nil:
		return 0, errors.New("must be a whole number")
	}
	if problem := f.Problem(n); problem != "" {
		return 0, errors.New(problem)
	}
	return n, nil
}
