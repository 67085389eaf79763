package response

import (
	"fmt"
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
)

// The gRPC status codes of denials.
const (
	invalidArgument   = "3"
	permissionDenied  = "7"
	resourceExhausted = "8"
	unavailable       = "14"
)

// trailers writes the denial of a gRPC call: headers alone, with HTTP status 200. Clients read grpc-status, its message
// and Retry-After only there. Many of them read a 429 as UNAVAILABLE, and retry at once.
func (re *Renderer) trailers(d *decision.Decision, r *Response) {
	code, message := resourceExhausted, re.grpcMessage
	switch d.Reason {
	case decision.Banned:
		code, message = permissionDenied, "Banned"
	case decision.TenantMissing:
		code, message = permissionDenied, "No tenant identified"
	case decision.UserMissing:
		code, message = permissionDenied, "No user identified"
	case decision.HeaderRepeated:
		code, message = invalidArgument, "Header with more than one value"
	case decision.InternalFault, decision.ConfigFault, decision.StoreAway:
		code, message = unavailable, "Service temporarily unavailable"
		if d.Reason == decision.StoreAway && re.closed == 429 {
			code = resourceExhausted
		}
	default: // Counted and MetaLimited
	}
	r.Status = 200
	r.text("Content-Type", "application/grpc")
	r.text("grpc-status", code)
	r.text("grpc-message", message)
}

// percentEncode encodes a grpc-message: % and every byte that is not printable ASCII become % and two hexadecimal
// digits.
func percentEncode(message string) string {
	var b strings.Builder
	for i := range len(message) {
		if c := message[i]; c >= ' ' && c <= '~' && c != '%' {
			b.WriteByte(c)
			continue
		}
		fmt.Fprintf(&b, "%%%02X", message[i])
	}
	return b.String()
}
