package kongplugin

import (
	"math"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limit"
)

var serializeMethod = methodFrame("kong.log.set_serialize_value")

// serializedAs is the name under which Kong's log plugins write the decision.
const serializedAs = "rate_limit"

// object is a google.protobuf.Struct that is being written.
type object []byte

// text adds a field; an empty one is left out.
func (o object) text(name, value string) object {
	if value == "" {
		return o
	}
	return o.field(name, protowire.AppendString(protowire.AppendTag(nil, 3, protowire.BytesType), value))
}

func (o object) number(name string, value int64) object {
	return o.field(name, protowire.AppendFixed64(protowire.AppendTag(nil, 2, protowire.Fixed64Type), math.Float64bits(float64(value))))
}

// flag adds a field if it is true.
func (o object) flag(name string, value bool) object {
	if !value {
		return o
	}
	return o.field(name, protowire.AppendVarint(protowire.AppendTag(nil, 4, protowire.VarintType), 1))
}

// field adds an entry of the map: a name and a google.protobuf.Value.
func (o object) field(name string, value []byte) object {
	entry := appendString(nil, 1, name)
	entry = protowire.AppendBytes(protowire.AppendTag(entry, 2, protowire.BytesType), value)
	return protowire.AppendBytes(protowire.AppendTag(o, 1, protowire.BytesType), entry)
}

// appendTrace appends the question that puts the decision into what Kong's log plugins write. It is asked only where the
// config says so, and allocates.
func appendTrace(out []byte, d *decision.Decision) []byte {
	o := object{}.text("result", d.Result.String()).text("mode", d.Mode.String()).text("tier", d.Resolution.Tier).text("endpoint", d.Resolution.Endpoint)
	if d.Reason != decision.Counted {
		o = o.text("reason", d.Reason.String())
	}
	if d.Denied() && d.RetryAfter != limit.Never {
		o = o.number("retry_after", d.RetryAfter.Seconds())
	}
	if d.Binding >= 0 && d.Binding < len(d.Statuses) {
		p, status := d.Resolution.Bounds[d.Binding].Policy, &d.Statuses[d.Binding]
		o = o.text("policy", p.Name)
		if p.Row != 0 {
			o = o.number("policy_id", p.Row)
		}
		o = o.number("limit", p.Limit.Spec().Burst).number("remaining", status.Remaining).text("source", status.Source.String())
	}
	if d.PolicyVersion != 0 {
		o = o.number("policy_version", d.PolicyVersion)
	}
	o = o.flag("shadow_denied", d.ShadowDenied).flag("degraded", d.Degraded)

	value := protowire.AppendBytes(protowire.AppendTag(nil, 5, protowire.BytesType), o)
	out = append(out, serializeMethod...)
	out, start := beginFrame(out)
	out = appendString(out, 1, serializedAs)
	out = protowire.AppendBytes(protowire.AppendTag(out, 2, protowire.BytesType), value)
	endFrame(out, start)
	return out
}
