package schema

import (
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Decode reads fields of a row from a JSON object, and ignores other members. It returns what is wrong with the values
// by themselves: values of a wrong type, numbers outside their bounds, faulty records, times that are null or empty,
// and empty texts that name nothing, unless emptyIsAbsent. A row has 0 and an empty text as absent, so its own check
// does not find all of these.
func Decode[T any](raw []byte, fields []Field[T], row *T, emptyIsAbsent bool) []Fault {
	document, faults := decodeDocument(raw)
	if document == nil {
		return faults
	}
	for i := range fields {
		f := &fields[i]
		n := document.get(f.Name)
		_, isTime := f.In(row).(*time.Time)
		isEmpty := n != nil && (n.kind == kindNull || emptyIsAbsent && n.kind == kindString && n.text == "")
		if n == nil || isEmpty && !isTime {
			continue
		}
		if record := RecordIn(f.In(row)); record != nil {
			faults = append(faults, record.Parse(n.appendJSON(nil))...)
		} else if problem := f.decode(n, f.In(row)); problem != "" {
			faults = append(faults, Fault{f.Name, problem})
		}
	}
	return faults
}

// decode reads a scalar, and returns its fault or "".
func (f *Field[T]) decode(n *node, to any) string {
	at, isTime := to.(*time.Time)
	switch {
	case isTime:
		var err error
		if *at, err = ParseTime(n.text); err != nil || n.kind != kindString {
			return TimeForm
		}
		return ""
	case f.Unit == "thousandths":
		value, err := Thousandths(n.text)
		if err != nil || n.kind != kindNumber && n.kind != kindString {
			return f.Must()
		}
		n = &node{kind: kindNumber, text: strconv.FormatInt(value, 10)}
	}
	c := checker{faulty: map[string]bool{}}
	if !c.rightType(f.rule, n, f.Name) {
		return c.faults[0].Message
	}
	if err := json.Unmarshal(n.appendJSON(nil), to); err != nil {
		return err.Error()
	}
	if f.Unit == "text" || n.kind == kindString && n.text != "" {
		return "" // the row shows the fault of a text
	}
	return f.rule.violation(n)
}

// WithRow returns the faults of values by themselves, and those of the row but in the same fields: these are
// consequences.
func WithRow(own, row []Fault) []Fault {
	field := func(f Fault) string {
		name, _, _ := strings.Cut(f.Path, ".")
		return name
	}
	all := slices.Clone(own)
	for _, f := range row {
		if !slices.ContainsFunc(own, func(o Fault) bool { return field(o) == field(f) }) {
			all = append(all, f)
		}
	}
	return all
}

// Thousandths reads a decimal number digit by digit: 1.5 is 1500, and never 1499.
func Thousandths(text string) (int64, error) {
	whole, decimals, _ := strings.Cut(text, ".")
	if len(decimals) > 3 && strings.Trim(decimals[3:], "0") != "" {
		return 0, errors.New("has more than 3 decimals")
	}
	n, err := strconv.ParseUint(whole+(decimals + "000")[:3], 10, 32)
	return int64(n), err
}
