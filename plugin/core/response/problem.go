package response

import (
	"strconv"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
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

// body writes the problem document of a denial (RFC 9457). Its parts either consist of characters that need no escaping
// (policy names are validated) or were encoded when the config was compiled.
func (re *Renderer) body(d *decision.Decision, wait int64, r *Response) {
	b := r.Body
	b = append(b, `{"type":`...)
	message := re.message
	switch d.Reason {
	case decision.TenantMissing:
		b = append(b, identityIsRequired...)
		b = append(b, `,"detail":"No tenant is identified, and this API requires one."`...)
		message = []byte(`"No tenant identified"`)
	case decision.UserMissing:
		b = append(b, identityIsRequired...)
		b = append(b, `,"detail":"No user is identified, and this API requires one."`...)
		message = []byte(`"No user identified"`)
	case decision.HeaderRepeated:
		b = append(b, badRequest...)
		b = append(b, `,"detail":"The header `...)
		b = append(b, d.Identity.Repeated...) // from the config: letters, digits, dashes and underscores
		b = append(b, ` must be sent once and hold one value, without a comma."`...)
		message = []byte(`"Header with more than one value"`)
	case decision.Counted:
		b = append(b, quotaExceeded...)
		b = append(b, `,"detail":"`...)
		b = re.detail(b, d, wait)
		b = append(b, `","violated-policies":[`...)
		b = denying(b, d, true)
		b = append(b, ']')
	case decision.MetaLimited:
		b = append(b, quotaExceeded...)
		b = append(b, `,"detail":"More requests arrive from this client than this server decides about. Try again in `...)
		b = strconv.AppendInt(b, wait, 10)
		b = append(b, ` s."`...)
	case decision.Banned:
		b = append(b, abnormalUsage...)
		b = append(b, `,"detail":"This client is banned`...)
		if wait > 0 {
			b = append(b, ` for the next `...)
			b = strconv.AppendInt(b, wait, 10)
			b = append(b, ` s`...)
		}
		b = append(b, `."`...)
		message = []byte(`"Banned"`)
	case decision.StoreAway:
		b = append(b, reducedCapacity...)
		b = append(b, `,"detail":"A limit of this API cannot be checked at the moment, and without it no request is `+
			`admitted. This is not the fault of the client. Try again in `...)
		b = strconv.AppendInt(b, wait, 10)
		b = append(b, ` s.","unchecked-policies":[`...)
		b = denying(b, d, false)
		b = append(b, ']')
		message = []byte(`"Service temporarily unavailable"`)
	default:
		b = append(b, reducedCapacity...)
		b = append(b, `,"detail":"The limits of this API cannot be checked at the moment."`...)
		message = []byte(`"Service temporarily unavailable"`)
	}
	b = append(b, `,"status":`...)
	b = strconv.AppendInt(b, int64(r.Status), 10)
	if wait > 0 {
		b = append(b, `,"retry_after_seconds":`...)
		b = strconv.AppendInt(b, wait, 10)
	}
	b = append(b, `,"message":`...)
	b = append(b, message...)
	b = append(b, '}')
	r.Body = b
}

// detail appends in words which limit the request met, and what helps. For a limit whose numbers clients do not read it
// appends the name alone.
func (re *Renderer) detail(b []byte, d *decision.Decision, wait int64) []byte {
	bound := &d.Resolution.Bounds[d.Binding]
	if d.Statuses[d.Binding].Source == decision.FairShare {
		return fairDetail(b, bound, wait)
	}
	if !re.shows(bound) {
		return sharedDetail(b, d, wait)
	}
	spec := bound.Policy.Limit.Spec()
	b = append(b, "Limit '"...)
	b = append(b, bound.Policy.Name...)
	b = append(b, "' allows "...)
	b = strconv.AppendInt(b, spec.Quantity, 10)
	b = append(b, " per "...)
	b = strconv.AppendInt(b, spec.Window.Seconds(), 10)
	b = append(b, " s"...)
	if spec.Burst != spec.Quantity {
		b = append(b, " with a burst of "...)
		b = strconv.AppendInt(b, spec.Burst, 10)
	}
	b = append(b, ", counted "...)
	if scope := bound.Policy.Scope; scope == policy.Global {
		b = append(b, "in total"...)
	} else {
		b = append(append(b, "per "...), scope.String()...)
	}
	if d.RetryAfter == limit.Never {
		b = append(b, ". This request costs "...)
		b = strconv.AppendInt(b, bound.Cost, 10)
		b = append(b, ", more than the "...)
		b = strconv.AppendInt(b, decision.Capacity(bound, &d.Statuses[d.Binding]), 10)
		b = append(b, " that the limit can ever hold: it will not succeed later either, only a smaller one will."...)
		return described(b, bound.Policy)
	}
	if bound.Cost > 1 {
		b = append(b, ". This request costs "...)
		b = strconv.AppendInt(b, bound.Cost, 10)
		b = append(b, " and "...)
		b = strconv.AppendInt(b, d.Statuses[d.Binding].Remaining, 10)
		b = append(b, " is left"...)
	}
	b = append(b, ". Try again in "...)
	b = strconv.AppendInt(b, wait, 10)
	return described(append(b, " s."...), bound.Policy)
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

// sharedDetail appends the detail without numbers of the limit.
func sharedDetail(b []byte, d *decision.Decision, wait int64) []byte {
	b = append(b, "Limit '"...)
	b = append(b, d.Resolution.Bounds[d.Binding].Policy.Name...)
	if d.RetryAfter == limit.Never {
		return append(
			b,
			"', which all clients share, can never hold what this request costs: it will not succeed later either, "+
				"only a smaller one will."...)
	}
	b = append(b, "', which all clients share, has no room. Try again in "...)
	b = strconv.AppendInt(b, wait, 10)
	return append(b, " s."...)
}

// fairDetail appends the detail of a denial by a fair share, without its size: it changes every second, and would show
// what other tenants demand.
func fairDetail(b []byte, bound *policy.Bound, wait int64) []byte {
	b = append(append(b, "Your share of a shared limit, '"...), bound.Policy.Name...)
	b = append(b, "', is used up. Try again in "...)
	return append(strconv.AppendInt(b, wait, 10), " s."...)
}

// denying appends the names of all policies that deny: those without room (checked), or those that could not be
// checked.
func denying(b []byte, d *decision.Decision, checked bool) []byte {
	separator := ""
	for i := range d.Statuses {
		bound, status := &d.Resolution.Bounds[i], &d.Statuses[i]
		if decision.Denies(bound, status) && checked == (status.Source != decision.Unanswered) {
			b = append(b, separator...)
			b = append(append(append(b, '"'), bound.Policy.Name...), '"')
			separator = ","
		}
	}
	return b
}
