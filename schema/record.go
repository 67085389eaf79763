package schema

import (
	"encoding/json"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/docpath"
)

// RecordField refers to a field of a row that has fields of its own: a [Settle] or a [Fair].
type RecordField struct {
	// JSON returns the record as JSON, or "" if it is absent.
	JSON func() string
	// Parse checks the JSON of a record, fills in its defaults and sets the field. The paths of faults begin with the
	// name of the field. A record with faults lacks the values that have them.
	Parse func(raw []byte) []Fault
	// Decode sets the field to what JSON returned, without a check; nil: to absent. After an error the field holds a record
	// that is faulty.
	Decode func(raw []byte) error
	// Example is the JSON of a record as a user may write it.
	Example string
}

// RecordIn returns the record that a pointer of [Field.In] refers to, or nil if the field is none.
func RecordIn(field any) *RecordField {
	switch to := field.(type) {
	case **Settle:
		return recordField(to, ParseSettle, Settle{}, `{"sources": [{"from": "log.response.size"}], "reserve": 500}`)
	case **Fair:
		return recordField(to, ParseFair, Fair{Default: -1}, `{"weights": {"enterprise": 10}, "default": 1}`)
	}
	return nil
}

func recordField[T any](to **T, parse func([]byte) (*T, []Fault), faulty T, example string) *RecordField {
	return &RecordField{
		JSON: func() string {
			if *to == nil {
				return ""
			}
			return recordJSON(*to)
		},
		Parse: func(raw []byte) (faults []Fault) {
			*to, faults = parse(raw)
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
func parseRecord[T any](raw []byte, name string, record *field) (*T, []Fault) {
	document, faults := decodeDocument(raw)
	for i := range faults {
		faults[i].Path = docpath.Join(name, faults[i].Path)
	}
	if document == nil {
		return nil, faults
	}
	c := checker{faulty: map[string]bool{}, faults: faults}
	if !c.value(record, document, name) {
		return nil, c.faults
	}
	value := new(T)
	if err := json.Unmarshal(document.appendJSON(nil), value); err != nil && len(c.faults) == 0 {
		c.fault(name, "decode: %v", err)
	}
	return value, c.faults
}
