package schema

import (
	"encoding/json"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/docpath"
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
			if _, isPrice := f.In(row).(*Price); isPrice {
				faults = append(faults, Fault{f.Name, "is required; 0 makes the tokens free"})
			}
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
	var err error
	switch to := to.(type) {
	case *time.Time:
		if *to, err = ParseTime(n.text); err != nil || n.kind != kindString {
			return TimeForm
		}
		return ""
	case *Price:
		if *to, err = ParsePrice(n.text); err != nil || n.kind != kindNumber && n.kind != kindString {
			return f.Must()
		}
		return ""
	case *Factor:
		if *to, err = ParseFactor(n.text); err != nil || n.kind != kindNumber && n.kind != kindString {
			return f.Must()
		}
		return f.Problem(int64(*to))
	}
	c := checker{faulty: map[string]bool{}}
	if !c.rightType(f.rule, n, f.Name) {
		return c.faults[0].Message
	}
	if err = json.Unmarshal(n.appendJSON(nil), to); err != nil {
		return err.Error()
	}
	if f.Unit == "text" || n.kind == kindString && n.text != "" {
		return "" // the row shows the fault of a text
	}
	return f.rule.violation(n)
}

// RecordField refers to a field of a row that has fields of its own: a [Settle], a [Match], a [Fair] or an
// [Anchor].
type RecordField struct {
	// JSON returns the record as JSON, or "" if it is absent.
	JSON func() string
	// Parse checks the JSON of a record, fills in its defaults and sets the field. The paths of faults begin with the
	// name of the field. A record with faults lacks the values that have them.
	Parse func(raw []byte) []Fault
	// Decode sets the field to what JSON returned, without a check; nil: to absent. After an error the field holds a
	// record that is faulty.
	Decode func(raw []byte) error
	// Example is the JSON of a record as a user may write it.
	Example string
}

// RecordIn returns the record that a pointer of [Field.In] refers to, or nil if the field is none.
func RecordIn(field any) *RecordField {
	switch to := field.(type) {
	case **Settle:
		return recordField(to, "settle", Settle{}, `{"sources": [{"from": "log.response.size"}], "reserve": 500}`)
	case **Match:
		return recordField(to, "match", Match{}, `{"model": "gpt-4o*"}`)
	case **Fair:
		return recordField(to, "fair", Fair{Default: -1}, `{"weights": {"enterprise": 10}, "default": 1}`)
	case **Anchor:
		return recordField(to, "anchor", Anchor{Day: -1}, `{"day": 15, "hour": 6}`)
	}
	return nil
}

func recordField[T any](to **T, name string, faulty T, example string) *RecordField {
	return &RecordField{
		JSON: func() string {
			if *to == nil {
				return ""
			}
			return recordJSON(*to)
		},
		Parse: func(raw []byte) (faults []Fault) {
			*to, faults = parseRecord[T](raw, name)
			return faults
		},
		Decode: func(raw []byte) error {
			if *to = nil; raw == nil {
				return nil
			}
			decoded := new(T)
			err := json.Unmarshal(raw, decoded)
			if err != nil {
				*decoded = faulty
			}
			*to = decoded
			return err
		},
		Example: example,
	}
}

// parseRecord reads the JSON of a record of a row and fills in its defaults. The paths of faults begin with name.
func parseRecord[T any](raw []byte, name string) (*T, []Fault) {
	document, faults := decodeDocument(raw)
	for i := range faults {
		faults[i].Path = docpath.Join(name, faults[i].Path)
	}
	if document == nil {
		return nil, faults
	}
	c := checker{faulty: map[string]bool{}, faults: faults}
	if !c.value(modelOf[T]().record, document, name) {
		return nil, c.faults
	}
	value := new(T)
	if err := json.Unmarshal(document.appendJSON(nil), value); err != nil && len(c.faults) == 0 {
		c.fault(name, "decode: %v", err)
	}
	return value, c.faults
}
