package schema

import "github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/docpath"

// DeniedNulls returns the nulls for which Kong denies a config, as an error of type Faults: those of fields that are
// required or unknown. [Parse] takes each null for an absent value, because the configs that it reads have passed Kong.
func DeniedNulls(raw []byte) error {
	document, _ := decodeDocument(raw)
	if document == nil {
		return nil // a fault of Parse
	}
	return asError(configField().deniedNulls(document, ""))
}

func (f *field) deniedNulls(n *node, path string) (faults []Fault) {
	for i, item := range n.items {
		if f.Elements != nil {
			faults = append(faults, f.Elements.deniedNulls(item, docpath.Item(path, i))...)
		}
	}
	for _, m := range n.members {
		at, inner := docpath.Member(path, m.key), f.field(m.key)
		switch isNull := m.value.kind == kindNull; {
		case inner != nil && !isNull:
			faults = append(faults, inner.deniedNulls(m.value, at)...)
		case inner != nil && inner.Required:
			faults = append(faults, Fault{at, "must not be null: leave it out for its default"})
		case inner == nil && isNull && f.Type == "record" && !addedByKong(m.key, path == ""):
			faults = append(faults, Fault{at, f.unknown(m.key)})
		}
	}
	return faults
}
