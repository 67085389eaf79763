package schema

import (
	"errors"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Values of Override.Kind.
const (
	KindCustomLimit = "custom_limit" // replaces the limit of a policy
	KindMultiplier  = "multiplier"   // scales limits
	KindTopUp       = "topup"        // adds to a calendar limit until its period ends
	KindBan         = "ban"          // denies all requests
	KindExempt      = "exempt"       // admits all requests
)

// Values of Override.Source.
const (
	SourceCommercial = "commercial" // agreed with the tenant
	SourceScheduled  = "scheduled"  // the same, and it begins at StartsAt
	SourceDetector   = "detector"   // a penalty, which applies after the commercial ones
)

// Override is a change to the limits of one subject for some time, as a row of the database has it, the REST API and
// the ratelimit command. The subject is a tenant, and in it perhaps a user, an endpoint or both; or a credential; or an
// address. The last two are those of the tenant if one is given, else of all tenants. An exempt override may also be
// for a consumer's tag, for an endpoint of all tenants, or for an address or a tag and an endpoint. Each field is
// declared here alone, as those of Policy are, or takes over the constraints of another field.
//
// An empty text, a zero number and a zero time mean absent.
type Override struct {
	// The kind of change: custom_limit replaces the limit of a policy, multiplier scales limits, ban denies all requests,
	// exempt admits all requests, topup adds to a calendar limit of a tenant until its period ends. Required.
	Kind string `json:"kind" kong:"required,one_of=custom_limit|multiplier|ban|exempt|topup"`

	// The tenant whose limits change; required unless a credential or an ip is given, or a tag or an endpoint is exempt.
	Tenant string `json:"tenant,omitempty" kong:"as=Policy.tenant" example:"acme"`

	// Only this user of the tenant.
	User string `json:"user,omitempty" kong:"as=Policy.tenant" alias:"userId" example:"u_42"`

	// Only the credential with this id; without a tenant, in requests of every tenant.
	Credential string `json:"credential,omitempty" kong:"as=Policy.tenant"`

	// Only this IP address or network; without a tenant, in requests of every tenant.
	IP string `json:"ip,omitempty" kong:"len_max=64" kong_err:"must be one address or a network, such as 192.0.2.1, 192.0.2.0/24 or 2001:db8::/48" unit:"address" example:"2001:db8::/64"`

	// For exempt: only requests whose consumer in Kong has this tag, of every tenant.
	Tag string `json:"tag,omitempty" kong:"as=Exemption.tag" example:"monitoring"`

	// Only requests to this endpoint, as "METHOD /pattern": {param} and a trailing * are wildcards; * as the method
	// matches any method.
	Endpoint string `json:"endpoint,omitempty" kong:"as=Limit.endpoint" alias:"endpointPattern" example:"POST /records"`

	// Only limits of the policy with this name. Required for custom_limit and topup; without it, a multiplier changes all
	// limits of its subject.
	Policy string `json:"policy,omitempty" kong:"as=Limit.name" example:"daily"`

	// For custom_limit: how many tokens a window allows.
	Limit int64 `json:"limit,omitempty" kong:"as=Limit.limit" unit:"tokens"`

	// For custom_limit: the window in seconds. Default: the policy's.
	WindowSize int64 `json:"window_size,omitempty" kong:"as=Limit.window_size" unit:"seconds" flag:"window"`

	// For custom_limit: the capacity of the bucket in tokens. Default: the algorithm's default.
	Burst int64 `json:"burst,omitempty" kong:"as=Limit.burst" unit:"tokens"`

	// For multiplier: the factor to multiply limits by, from 0.001 to 1000, with at most three decimals.
	Factor Factor `json:"factor,omitempty" kong:"between=1..1000000" kong_err:"must be a decimal number with at most three places, such as 1.5, from 0.001 to 1000" unit:"thousandths" example:"1.5"`

	// For topup: how many tokens it adds to the limit that applies otherwise. Several top-ups add up.
	Amount int64 `json:"amount,omitempty" kong:"as=Limit.limit" unit:"tokens" example:"100000"`

	// Why the override is there; recorded in the audit and in the override, and not shown to tenants. Required.
	Reason string `json:"reason,omitempty" kong:"required,len_max=1024" kong_err:"is required, in 1 to 1024 bytes: why is this change made?" example:"launch week"`

	// Who made the override. Default: the actor of the change.
	Author string `json:"author,omitempty" kong:"required,len_max=256" kong_err:"must be given, in at most 256 bytes"`

	// When the override begins, such as on a launch day. Default: at once.
	StartsAt time.Time `json:"starts_at,omitzero" kong_err:"must be from 1970 to 9999"`

	// When the override ends. Give either this or permanent. A topup ends with the period in which it is made: it needs
	// this only where the writer does not know the plugin's config.
	ExpiresAt time.Time `json:"expires_at,omitzero" kong_err:"must be in the future"`

	// The override never ends. Give either this or an end.
	Permanent bool `json:"permanent,omitempty"`

	// Either commercial, or detector for a penalty, which applies after the commercial ones. A commercial override with
	// starts_at is scheduled. Default: commercial, or scheduled with starts_at.
	Source string `json:"source,omitempty" kong:"one_of=commercial|detector|scheduled"`

	// The note that the tenant sees, at most 1024 bytes without control characters. Default: nothing.
	PublicNote string `json:"public_note,omitempty" kong:"as=Policy.public_note" unit:"text" example:"Agreed until the end of the year."`
}

// Subject returns what o is about, in words.
func (o Override) Subject() string {
	return inWords("tenant", o.Tenant, "user", o.User, "endpoint", o.Endpoint, "credential", o.Credential, "ip", o.IP,
		"tag", o.Tag)
}

// Factor is a number in thousandths. In JSON it is a decimal: 1.5.
type Factor int64

// String returns the decimal.
func (f Factor) String() string { return strconv.FormatFloat(float64(f)/1000, 'f', -1, 64) }

// MarshalJSON implements [json.Marshaler].
func (f Factor) MarshalJSON() ([]byte, error) { return []byte(f.String()), nil }

// UnmarshalJSON reads a number, or a text that holds one.
func (f *Factor) UnmarshalJSON(raw []byte) (err error) {
	if string(raw) != "null" {
		*f, err = ParseFactor(strings.Trim(string(raw), `"`))
	}
	return err
}

// ParseFactor reads a decimal number digit by digit: 1.5 is 1500, and never 1499.
func ParseFactor(text string) (Factor, error) {
	whole, decimals, _ := strings.Cut(text, ".")
	if len(decimals) > 3 && strings.Trim(decimals[3:], "0") != "" {
		return 0, errors.New("has more than 3 decimals")
	}
	n, err := strconv.ParseUint(whole+(decimals + "000")[:3], 10, 32)
	return Factor(n), err
}

// inWords joins names, each before its value, of those that have a value.
func inWords(named ...string) string {
	var parts []string
	for part := range slices.Chunk(named, 2) {
		if part[1] != "" {
			parts = append(parts, part[0]+" "+part[1])
		}
	}
	return strings.Join(parts, ", ")
}

// Faults returns everything that is wrong with o by itself, in the order of its fields; the paths are their names. The
// checks find what needs more than the schema, as those of Parse do.
func (o Override) Faults(checks ...func(Override) error) []Fault {
	writable := o
	for _, at := range [...]*time.Time{&writable.StartsAt, &writable.ExpiresAt} {
		if year := at.UTC().Year(); year > maxYear || year < 0 {
			*at = time.Time{}
		}
	}
	own := func(Override) error { return Faults(o.Conflicts()).OrNil() }
	return modelOf[Override]().faults(writable, append([]func(Override) error{own}, checks...)...)
}

// maxYear is the last year that JSON can write.
const maxYear = 9999

// TimeForm is the fault of a text that ParseTime does not read.
const TimeForm = "must be a time with its zone and a year up to 9999, such as 2026-01-31T12:00:00Z (RFC 3339)"

// ParseTime reads the time of a field. An error has the text TimeForm. The first second of the year 1 is one too: a
// field has it as absent.
func ParseTime(text string) (time.Time, error) {
	at, err := time.Parse(time.RFC3339, text)
	if err != nil || at.IsZero() {
		return time.Time{}, errors.New(TimeForm)
	}
	return at, nil
}

// Conflicts returns what is wrong with the fields of o beside each other, with those that are there and empty, and with
// those that no request can match. It does without what Faults costs.
func (o Override) Conflicts() []Fault {
	faults := findings(o.subjectFaults())
	faults.addProblem("ip", addressProblem(o.IP))
	faults.addProblem("tag", tagProblem(o.Tag))
	faults.addProblem("endpoint", methodProblem(o.Endpoint))
	if slices.Contains(overrideKinds[:], o.Kind) { // else what the fields are for is not clear
		faults.addProblem("policy", o.policyProblem())
		faults = append(faults, o.numberFaults()...)
	}
	for _, text := range [...]struct{ name, value string }{{"reason", o.Reason}, {"author", o.Author}} {
		if strings.TrimSpace(text.value) == "" {
			faults.addProblem(text.name, FieldNamed[Override](text.name).Must())
		}
	}
	faults.addProblem(o.startProblem())
	faults.addProblem("expires_at", o.endProblem())
	if o.Kind == KindTopUp && o.Permanent {
		faults.add("permanent", "must be left out of a topup, which ends with the period in which it is made")
	}
	if o.Source == SourceDetector && (o.Kind != KindBan && o.Kind != KindMultiplier || o.Factor >= 1000) {
		faults.add("source", "must not be detector: a detector may only ban, or scale down by a factor below 1")
	}
	return faults
}

// OwnSource returns the source of an override that people make: scheduled if it has a start, else commercial.
func (o Override) OwnSource() string {
	if o.StartsAt.IsZero() {
		return SourceCommercial
	}
	return SourceScheduled
}

var overrideKinds = [...]string{KindCustomLimit, KindMultiplier, KindBan, KindExempt, KindTopUp}

func (o Override) subjectFaults() []Fault {
	const subject = "an override is for a tenant, perhaps with a user, an endpoint or both; or for a credential; or for an " +
		"ip; an exempt also for a tag, or for an endpoint of all tenants"
	isExempt := o.Kind == KindExempt
	switch {
	case o.Kind == KindTopUp && o.Tenant == "":
		return []Fault{{"tenant", "is required for a topup, which adds to a limit of one tenant"}}
	case o.Kind == KindTopUp && o.IP != "":
		return []Fault{{"ip", "must be left out of a topup, which adds to a limit of one tenant"}}
	case o.Tag != "" && !isExempt:
		return []Fault{{"tag", "must be left out: it belongs to an exempt alone"}}
	case o.Tag != "" && o.Tenant != "":
		return []Fault{{"tag", "must be left out beside a tenant: an exempt of a tag is for all tenants"}}
	case o.Tenant+o.Credential+o.IP+o.Tag == "" && (!isExempt || o.User != "" || o.Endpoint == ""):
		return []Fault{{"tenant", "is required unless credential or ip is given: " + subject}}
	}
	beside := "credential"
	switch {
	case o.IP != "":
		beside = "ip"
	case o.Tag != "":
		beside = "tag"
	}
	var faults findings
	if isExempt && strings.HasSuffix(o.IP, "/0") {
		faults.add("ip", "must not cover all addresses: an exempt of a network has a length from 1 on")
	} else if prefix, err := netip.ParsePrefix(o.IP); isExempt && err == nil && prefix.Addr().Is4In6() {
		faults.add("ip", "must be written as a network of IPv4, such as 192.0.2.0/24")
	}
	for _, other := range [...]struct {
		name  string
		given bool
	}{
		{"user", o.User != "" && o.Credential+o.IP+o.Tag != ""},
		{"credential", o.Credential != "" && o.IP+o.Tag != ""},
		{"tag", o.Tag != "" && o.IP != ""},
		{"endpoint", o.Endpoint != "" && (o.Credential != "" || o.IP != "" && !isExempt)},
	} {
		if other.given {
			faults.add(other.name, "must be left out beside %s: "+subject, beside)
		}
	}
	return faults
}

func (o Override) policyProblem() string {
	switch {
	case o.Kind == KindCustomLimit && o.Policy == "":
		return "is required for a custom_limit: it replaces the limit of the policy that it names"
	case o.Kind == KindTopUp && o.Policy == "":
		return "is required for a topup: it adds to the limit of the policy that it names"
	case (o.Kind == KindBan || o.Kind == KindExempt) && o.Policy != "":
		return "must be left out of a ban or an exempt, which is for all policies"
	}
	return ""
}

func (o Override) numberFaults() []Fault {
	var faults findings
	for _, number := range [...]struct {
		name, kind string
		value      int64
		required   bool
		example    string
	}{
		{"limit", KindCustomLimit, o.Limit, true, ", such as 1000"},
		{"window_size", KindCustomLimit, o.WindowSize, false, ""},
		{"burst", KindCustomLimit, o.Burst, false, ""},
		{"factor", KindMultiplier, int64(o.Factor), true, ", such as 1.5"},
		{"amount", KindTopUp, o.Amount, true, ", such as 100000"},
	} {
		switch {
		case o.Kind != number.kind && number.value != 0:
			faults.add(number.name, "must be left out: it belongs to a %s alone", number.kind)
		case o.Kind == number.kind && number.value == 0 && number.required:
			faults.add(number.name, "is required for a %s%s", number.kind, number.example)
		}
	}
	return faults
}

func (o Override) startProblem() (field, problem string) {
	switch hasStart := !o.StartsAt.IsZero(); {
	case hasStart && o.Kind == KindTopUp:
		return "starts_at", "must be left out of a topup, which begins at once: top-ups of later periods are not supported"
	case hasStart && (o.StartsAt.UnixMicro() <= 0 || o.StartsAt.UTC().Year() > maxYear):
		return "starts_at", FieldNamed[Override]("starts_at").Must()
	case hasStart && !o.ExpiresAt.IsZero() && !o.StartsAt.Before(o.ExpiresAt):
		return "starts_at", "must be before expires_at"
	case hasStart && o.Source == SourceDetector:
		return "starts_at", "must be left out of a detector's penalty, which begins at once"
	case hasStart && o.Source != SourceScheduled && o.Source != "":
		return "source", "must be scheduled beside starts_at, or left out"
	case !hasStart && o.Source == SourceScheduled:
		return "starts_at", "is required for source scheduled"
	}
	return "", ""
}

func (o Override) endProblem() string {
	switch {
	case o.Kind == KindTopUp && o.ExpiresAt.IsZero():
		return "" // the writer finds when the period ends
	case o.Permanent && !o.ExpiresAt.IsZero():
		return "must be left out of a permanent override"
	case !o.Permanent && o.ExpiresAt.IsZero():
		return "is required, unless permanent is true"
	case o.ExpiresAt.UTC().Year() > maxYear, !o.Permanent && o.ExpiresAt.UnixMicro() <= 0: // to a node, that is none
		return FieldNamed[Override]("expires_at").Must()
	}
	return ""
}
