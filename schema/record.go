package schema

import (
	"encoding/json"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/docpath"
)

// Record is the value of a field that has fields of its own: a [Settle] or a [Fair].
type Record interface {
	// JSON returns the record as JSON.
	JSON() string
	// Describe returns the record in words.
	Describe() string
}

// RecordField refers to such a field of a row.
type RecordField interface {
	// Get returns the record, or nil if it is absent.
	Get() Record
	// Parse checks the JSON of a record, fills in its defaults and sets the field. The paths of faults begin with the
	// name of the field. A record with faults lacks the values that have them.
	Parse(raw []byte) []Fault
	// Decode sets the field to what Record.JSON returned, without a check; nil: to absent. After an error the field holds
	// a record that is faulty.
	Decode(raw []byte) error
	// Example returns the JSON of a record as a user may write it.
	Example() string
}

// RecordIn returns the record that a pointer of [Field.In] refers to, or nil if the field is none.
func RecordIn(field any) RecordField {
	switch to := field.(type) {
	case **Settle:
		return recordField[Settle, *Settle]{
			to, ParseSettle,
			Settle{},
			`{"sources": [{"from": "log.response.size"}], "reserve": 500}`,
		}
	case **Fair:
		return recordField[Fair, *Fair]{to, ParseFair, Fair{Default: -1}, `{"weights": {"enterprise": 10}, "default": 1}`}
	}
	return nil
}

type recordField[T any, P interface {
	*T
	Record
}] struct {
	to      *P
	parse   func([]byte) (P, []Fault)
	faulty  T
	example string
}

// Get implements RecordField.
func (r recordField[T, P]) Get() Record {
	if *r.to == nil {
		return nil
	}
	return *r.to
}

// Parse implements RecordField.
func (r recordField[T, P]) Parse(raw []byte) (faults []Fault) {
	*r.to, faults = r.parse(raw)
	return faults
}

// Decode implements RecordField.
func (r recordField[T, P]) Decode(raw []byte) error {
	if *r.to = nil; raw == nil {
		return nil
	}
	decoded := new(T)
	err := json.Unmarshal(raw, decoded)
	if err != nil {
		*decoded = r.faulty
	}
	*r.to = decoded
	return err
}

// Example implements RecordField.
func (r recordField[T, P]) Example() string { return r.example }

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
