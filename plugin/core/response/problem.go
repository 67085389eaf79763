package response

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/docpath"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// The problem types and titles of draft-ietf-httpapi-ratelimit-headers-10, section "Problem Types".
const (
	problemTypes  = `"https://iana.org/assignments/http-problem-types#`
	quotaExceeded = problemTypes +
		`quota-exceeded","title":"Request cannot be satisfied as assigned quota has been exceeded"`
	abnormalUsage = problemTypes +
		`abnormal-usage-detected","title":"Request not satisfied due to detection of abnormal request pattern"`
	reducedCapacity = problemTypes +
		`temporary-reduced-capacity","title":"Request cannot be satisfied due to temporary server capacity constraints"`
	identityIsRequired = `"about:blank","title":"Forbidden"`
	badRequest         = `"about:blank","title":"Bad Request"`
)

// The gRPC status codes of denials.
const (
	invalidArgument   = "3"
	permissionDenied  = "7"
	resourceExhausted = "8"
	unavailable       = "14"
)

const (
	tryLater  = "Service temporarily unavailable"
	unchecked = "The limits of this API cannot be checked at the moment."
)

// denials holds what clients read about a denial, by its reason: the status (0: the config's), the problem's type and
// title, its detail ("": it differs from denial to denial), the message of bodies and gRPC ("": the config's), and the
// status of gRPC.
var denials = [...]struct {
	status                         int
	problem, detail, message, grpc string
}{
	decision.Counted:       {0, quotaExceeded, "", "", resourceExhausted},
	decision.TenantMissing: {403, identityIsRequired, missing("tenant"), "No tenant identified", permissionDenied},
	decision.UserMissing:   {403, identityIsRequired, missing("user"), "No user identified", permissionDenied},
	decision.InternalFault: {503, reducedCapacity, unchecked, tryLater, unavailable},
	decision.ConfigFault:   {503, reducedCapacity, unchecked, tryLater, unavailable},
	decision.StoreAway:     {0, reducedCapacity, "", tryLater, unavailable},
	decision.MetaLimited:   {0, quotaExceeded, "", "", resourceExhausted},
	decision.Banned:        {0, abnormalUsage, "", "Banned", permissionDenied},
	decision.HeaderRepeated: {
		400, badRequest, "", "Header with more than one value", invalidArgument,
	},
	decision.ModelUnpriced: {400, badRequest, "", "Model without a price", invalidArgument},
}

func missing(name string) string { return "No " + name + " is identified, and this API requires one." }

// trailers writes the denial of a gRPC call: headers alone, with HTTP status 200. Clients read grpc-status, its message
// and Retry-After only there. Many of them read a 429 as UNAVAILABLE, and retry at once.
func (re *Renderer) trailers(d *decision.Decision, r *Response) {
	denial := &denials[d.Reason]
	code := denial.grpc
	if d.Reason == decision.StoreAway && re.config.ClosedStatus == 429 {
		code = resourceExhausted
	}
	r.Status = 200
	r.text("Content-Type", "application/grpc")
	r.text("grpc-status", code)
	r.text("grpc-message", cmp.Or(denial.message, re.grpcMessage))
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

// amount is a number of a limit, which people read in its unit.
type amount struct {
	n    int64
	unit string
}

// appendParts appends texts, numbers and amounts. It keeps none of the parts, so that they are not allocated.
func appendParts(b []byte, parts ...any) []byte {
	for _, part := range parts {
		switch v := part.(type) {
		case string:
			b = append(b, v...)
		case int64:
			b = strconv.AppendInt(b, v, 10)
		case amount:
			b = schema.AppendAmount(b, v.n, v.unit)
		}
	}
	return b
}

// body writes the problem document of a denial (RFC 9457). Its parts either consist of characters that need no escaping
// (policy names are validated) or were encoded when the config was compiled.
func (re *Renderer) body(d *decision.Decision, wait int64, r *Response) {
	denial := &denials[d.Reason]
	b := appendParts(r.Body, `{"type":`, denial.problem, `,"detail":"`, denial.detail)
	switch d.Reason {
	case decision.HeaderRepeated: // its name is from the config: letters, digits, dashes and underscores
		b = appendParts(b, "The header ", d.Identity.Repeated, " must be sent once and hold one value, without a comma.")
	case decision.ModelUnpriced: // a client may have written its name
		name, _ := json.Marshal(docpath.Shorten(d.Identity.Model))
		b = appendParts(b, "The model '", string(name[1:len(name)-1]), "' has no price here, so its calls are not admitted.")
	case decision.Counted:
		b = append(re.detail(b, d, wait), `","violated-policies":[`...)
		b = append(denying(b, d, true), ']')
	case decision.MetaLimited:
		b = appendParts(b, "More requests arrive from this client than this server decides about. Try again in ", wait, " s.")
	case decision.Banned:
		b = append(b, "This client is banned"...)
		if wait > 0 {
			b = appendParts(b, " for the next ", wait, " s")
		}
		b = append(b, '.')
	case decision.StoreAway:
		b = appendParts(b, "A limit of this API cannot be checked at the moment, and without it no request is admitted. "+
			"This is not the fault of the client. Try again in ", wait, ` s.","unchecked-policies":[`)
		b = append(denying(b, d, false), ']')
	}
	if d.Reason != decision.Counted && d.Reason != decision.StoreAway { // these end with a list
		b = append(b, '"')
	}
	b = appendParts(b, `,"status":`, int64(r.Status))
	if wait > 0 {
		b = appendParts(b, `,"retry_after_seconds":`, wait)
	}
	if denial.message == "" {
		r.Body = appendParts(b, `,"message":`, re.message, "}")
	} else {
		r.Body = appendParts(b, `,"message":"`, denial.message, `"}`)
	}
}

// detail appends in words which limit the request met, and what helps. For a limit whose numbers clients do not read it
// appends the name alone.
func (re *Renderer) detail(b []byte, d *decision.Decision, wait int64) []byte {
	bound, status := &d.Resolution.Bounds[d.Binding], &d.Statuses[d.Binding]
	name := bound.Policy.Name
	if status.Source == decision.FairShare { // not its size: it changes every second, and shows what other tenants demand
		return appendParts(b, "Your share of a shared limit, '", name, "', is used up. Try again in ", wait, " s.")
	}
	if !re.Shows(bound) {
		b = appendParts(b, "Limit '", name)
		if d.RetryAfter == limit.Never {
			return append(b, "', which all clients share, can never hold what this request costs: it will not succeed later "+
				"either, only a smaller one will."...)
		}
		return appendParts(b, "', which all clients share, has no room. Try again in ", wait, " s.")
	}
	spec, unit := bound.Policy.Limit.Spec(), bound.Policy.Unit
	b = appendParts(b, "Limit '", name, "' allows ", amount{spec.Quantity, unit})
	switch {
	case spec.Calendar != nil:
		b = appendParts(b, " per ", spec.Calendar.String())
	case !bound.Policy.Limit.IsConcurrency():
		b = appendParts(b, " per ", spec.Window.Seconds(), " s")
	case spec.Quantity == 1:
		b = append(b, " request at once"...)
	default:
		b = append(b, " requests at once"...)
	}
	if spec.Burst != spec.Quantity {
		b = appendParts(b, " with a burst of ", amount{spec.Burst, unit})
	}
	if scope := bound.Policy.Scope; scope == policy.Global {
		b = append(b, ", counted in total"...)
	} else {
		b = appendParts(b, ", counted per ", scope.String())
	}
	if d.RetryAfter == limit.Never {
		b = appendParts(b, ". This request costs ", amount{bound.Cost, unit}, ", more than the ",
			amount{decision.Capacity(bound, status), unit}, " that the limit can ever hold: it will not succeed later either, "+
				"only a smaller one will.")
		return described(b, bound.Policy)
	}
	if bound.Cost > 1 {
		b = appendParts(b, ". This request costs ", amount{bound.Cost, unit}, " and ", amount{status.Remaining, unit},
			" is left")
	}
	return described(appendParts(b, ". Try again in ", wait, " s."), bound.Policy)
}

// described appends the description of a policy, if it has one, as JSON has it in a string: a description has no
// control characters.
func described(b []byte, p *policy.Policy) []byte {
	if p.Description == "" {
		return b
	}
	b = append(b, ' ')
	for _, c := range []byte(p.Description) {
		if c == '"' || c == '\\' {
			b = append(b, '\\')
		}
		b = append(b, c)
	}
	return b
}

// denying appends the names of all policies that deny: those without room (checked), or those that could not be
// checked.
func denying(b []byte, d *decision.Decision, checked bool) []byte {
	separator := ""
	for i := range d.Statuses {
		bound, status := &d.Resolution.Bounds[i], &d.Statuses[i]
		if decision.Denies(bound, status) && checked == (status.Source != decision.Unanswered) {
			b = appendParts(b, separator, `"`, bound.Policy.Name, `"`)
			separator = ","
		}
	}
	return b
}
