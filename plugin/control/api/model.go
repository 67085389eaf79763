package api

import (
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// describeInput publishes the declared constraints of fields, but huma does not check them. The row's own check does,
// with the same texts for all ways to write it.
func describeInput[T any](s *huma.Schema, fields []schema.Field[T]) {
	describeFields(s, fields)
	for i := range fields {
		f := &fields[i]
		published := map[string]any{}
		if f.Max > 0 {
			published["minimum"], published["maximum"] = f.Min, f.Max
		}
		switch isList := f.Type == "array" || f.Type == "set"; {
		case isList && f.MaxLength > 0:
			published["maxItems"] = f.MaxLength
		case f.MaxLength > 0:
			published["maxLength"] = f.MaxLength
		}
		if f.Pattern != "" {
			published["pattern"] = f.Pattern
		}
		if len(f.OneOf) > 0 {
			published["enum"] = f.OneOf
		}
		s.Properties[f.Name].Extensions = published
	}
}

// describeRecords describes the records of a policy, as describeInput does: its row's own check has the faults.
func describeRecords(r huma.Registry) {
	record, source := r.Map()["Settle"], r.Map()["SettleSource"]
	describeInput(record, schema.SettleFields())
	describeInput(source, schema.SettleSourceFields())
	record.Required, record.Extensions = nil, map[string]any{"required": []string{"sources"}}
	source.Required, source.Extensions = nil, map[string]any{"required": []string{"from"}}
	record.PrecomputeMessages() // else huma still requires what it did
	source.PrecomputeMessages()
	weights := r.Map()["Fair"]
	describeInput(weights, schema.FairFields())
	weights.Required = nil
	weights.PrecomputeMessages()
}

// describeFields gives the fields of a row their descriptions.
func describeFields[T any](s *huma.Schema, fields []schema.Field[T]) {
	for _, f := range fields {
		s.Properties[f.Name].Description = f.Description
	}
}

// redescribe ends a description by another default than that of the declaration.
func redescribe(s *huma.Schema, ending string) {
	for _, own := range [...]string{" Default: ", " Required."} {
		s.Description, _, _ = strings.Cut(s.Description, own)
	}
	s.Description += " " + ending
}
