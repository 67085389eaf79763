package control

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/pgstore"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
)

// Override is an override as callers read it.
type Override struct {
	ID         int64     `json:"id"`
	Kind       string    `json:"kind"                  enum:"custom_limit,multiplier,ban,exempt"`
	Org        string    `json:"org"`
	User       string    `json:"user,omitempty"`
	Endpoint   string    `json:"endpoint,omitempty"`
	Credential string    `json:"credential,omitempty"`
	IP         string    `json:"ip,omitempty"`
	Policy     string    `json:"policy,omitempty"                                                doc:"The name of the policies that it changes; absent: all of the subject's."`
	Limit      int64     `json:"limit,omitempty"`
	WindowSize int64     `json:"window_size,omitempty"                                           doc:"Seconds; absent: the policy's."`
	Burst      int64     `json:"burst,omitempty"`
	Factor     *factor   `json:"factor,omitempty"`
	Reason     string    `json:"reason,omitempty"                                                doc:"Absent for the token of an org, as the author is."`
	Author     string    `json:"author,omitempty"`
	PublicNote string    `json:"public_note,omitempty"                                           doc:"The note that the org sees."`
	Source     string    `json:"source"                                                          doc:"commercial, or detector for a penalty."`
	CreatedAt  time.Time `json:"created_at"`
	ExpiresAt  time.Time `json:"expires_at,omitzero"                                             doc:"Absent: it is permanent."`
	Permanent  bool      `json:"permanent,omitempty"`
	Revision   int64     `json:"revision"`
}

func overrideOf(o pgstore.Override) Override {
	out := Override{
		ID:         o.ID,
		Kind:       o.Kind,
		Org:        o.Tenant,
		User:       o.User,
		Endpoint:   o.Endpoint,
		Credential: o.Credential,
		IP:         o.IP,
		Policy:     o.Policy,
		Limit:      o.Limit,
		WindowSize: o.WindowSize,
		Burst:      o.Burst,
		Reason:     o.Reason,
		Author:     o.Author,
		PublicNote: o.PublicNote,
		Source:     o.Source,
		CreatedAt:  o.CreatedAt,
		ExpiresAt:  o.ExpiresAt,
		Permanent:  o.Permanent,
		Revision:   o.Revision,
	}
	if o.Factor != 0 {
		out.Factor = new(factor(o.Factor))
	}
	return out
}

// override is an override as the caller reads it: the token of an org learns neither why it is there nor who made it.
func (v view) override(o pgstore.Override) Override {
	if v.tenant {
		o.Reason, o.Author = "", ""
	}
	return overrideOf(o)
}

// factor is a number in thousandths that is written with a point: 1.5.
type factor int64

const thousand = 1000

// decimalPattern is a factor's text: what floats and exponents would make of it is not left to them.
const decimalPattern = `^[0-9]{1,4}(\.[0-9]{1,3}0*)?$`

var decimal = regexp.MustCompile(decimalPattern)

const factorProblem = `must be a decimal number with at most three places, such as 1.5 or "0.25", from 0.001 to 1000`

// MarshalJSON writes a number.
func (f factor) MarshalJSON() ([]byte, error) {
	text := strconv.FormatInt(int64(f)/thousand, 10)
	if rest := int64(f) % thousand; rest != 0 {
		text += strings.TrimRight(fmt.Sprintf(".%03d", rest), "0")
	}
	return []byte(text), nil
}

// UnmarshalJSON reads a number, or the text of one. What is neither becomes a factor that no override may have, and is
// told as its fault.
func (f *factor) UnmarshalJSON(raw []byte) error {
	text := string(raw)
	if strings.HasPrefix(text, `"`) {
		if err := json.Unmarshal(raw, &text); err != nil {
			return err
		}
	}
	*f = -1
	const longest = 32 // bytes
	if len(text) > longest || !decimal.MatchString(text) {
		return nil
	}
	whole, places, _ := strings.Cut(text, ".")
	places = (places + "000")[:3]
	n, err := strconv.ParseInt(whole+places, 10, 64)
	if err != nil {
		return fmt.Errorf("read the factor %q: %w", text, err)
	}
	*f = factor(n)
	return nil
}

// Schema is huma's.
func (factor) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{
		OneOf:       []*huma.Schema{{Type: huma.TypeNumber}, {Type: huma.TypeString, Pattern: decimalPattern}},
		Description: "What a multiplier multiplies limits by: a decimal number with at most three places, or its text, from 0.001 to 1000.",
		Examples:    []any{1.5},
	}
}

// overrideBody is an override as a caller writes it. Its org is that of the path.
type overrideBody struct {
	Kind       string    `json:"kind"                  enum:"custom_limit,multiplier,ban,exempt" doc:"custom_limit replaces the limit of a policy, multiplier scales limits, ban denies everything, exempt admits everything."`
	User       string    `json:"user,omitempty"                                                  doc:"Only this user of the org."                                                                                              maxLength:"128"`
	Endpoint   string    `json:"endpoint,omitempty"                                              doc:"Only these requests: METHOD /pattern."                                                                                   maxLength:"1024"`
	Credential string    `json:"credential,omitempty"                                            doc:"Only this credential."                                                                                                   maxLength:"128"`
	IP         string    `json:"ip,omitempty"                                                    doc:"Only this address, or IPv6 network."                                                                                     maxLength:"64"`
	Policy     string    `json:"policy,omitempty"                                                doc:"The name of the policies that it changes. A custom_limit needs one; a multiplier without one is for all of the subject." maxLength:"64"   pattern:"^[A-Za-z0-9_.-]*$" example:"daily"`
	Limit      int64     `json:"limit,omitempty"                                                 doc:"Of a custom_limit: tokens that a window allows."                                                                                                                                                                  minimum:"1" maximum:"1000000000000"`
	WindowSize int64     `json:"window_size,omitempty"                                           doc:"Of a custom_limit, in seconds. Default: the policy's."                                                                                                                                                            minimum:"1" maximum:"31622400"`
	Window     string    `json:"window,omitempty"                                                doc:"Another spelling of window_size, as a duration: 30s, 1m, 1h, 1d."                                                        maxLength:"32"`
	Burst      int64     `json:"burst,omitempty"                                                 doc:"Of a custom_limit: tokens. Default: the algorithm's."                                                                                                                                                             minimum:"1" maximum:"1000000000000"`
	Factor     *factor   `json:"factor,omitempty"`
	ExpiresAt  time.Time `json:"expires_at,omitzero"                                             doc:"When it ends. Either this, expires_in, or permanent."`
	ExpiresIn  string    `json:"expires_in,omitempty"                                            doc:"For how long it holds: 30m, 12h, 7d."                                                                                    maxLength:"32"                               example:"7d"`
	Permanent  bool      `json:"permanent,omitempty"                                             doc:"true: it never expires."`
	Reason     string    `json:"reason"                                                          doc:"Why; recorded in the audit and in the override, and not shown to orgs."                                                  maxLength:"1024"                             example:"launch week"                                                           minLength:"1"`
	PublicNote string    `json:"public_note,omitempty"                                           doc:"The note that the org sees. Default: nothing."                                                                           maxLength:"1024"                             example:"Agreed until the end of the year."`
}

// Resolve is huma's: it tells all that is wrong with the values, beside what the schema has told.
func (b *overrideBody) Resolve(ctx huma.Context) []error {
	var faults []error
	add := func(field, problem string, value any) { faults = append(faults, fault("body."+field, problem, value)) }
	window, err := windowSeconds(b.WindowSize, b.Window)
	if err != nil {
		add("window", err.Error(), b.Window)
	}
	if b.WindowSize != 0 && b.Window != "" {
		add("window", otherSpelling("window_size"), b.Window)
	}
	if why := checkReason(b.Reason); why != "" {
		add("reason", why, nil)
	}
	if b.Factor != nil && *b.Factor < 1 {
		add("factor", factorProblem, nil)
	}
	faults = append(faults, notTexts("body",
		textField{"user", b.User}, textField{"endpoint", b.Endpoint}, textField{"credential", b.Credential})...)
	b.end(add)
	row := policy.Override{
		Kind:       b.Kind,
		Tenant:     ctx.Param("org"),
		User:       b.User,
		Credential: b.Credential,
		IP:         b.IP,
		Endpoint:   b.Endpoint,
		Policy:     b.Policy,
		Limit:      b.Limit,
		WindowSize: window,
		Burst:      b.Burst,
		Factor:     b.thousandths(),
		Reason:     b.Reason,
		Author:     "token",
		PublicNote: b.PublicNote,
		Source:     policy.Commercial,
	}
	_, told := policy.NewSnapshot(policy.Rows{Overrides: []policy.Override{row}}, nil)
	for _, f := range told {
		switch f.Field {
		case "target":
			add("user", "cannot be combined with these: give a user, an endpoint or both, or a credential, or an ip", nil)
		case "tenant": // the path's, whose faults are told there
		case "factor":
			if b.Factor == nil {
				f.Problem = "is required for a multiplier, such as 1.5"
			}
			add(f.Field, f.Problem, nil)
		case "window_size":
			if b.Window != "" {
				f.Field = "window"
			}
			add(f.Field, f.Problem, nil)
		default:
			add(f.Field, f.Problem, nil)
		}
	}
	return faults
}

// end tells what is wrong with when the override ends.
func (b *overrideBody) end(add func(field, problem string, value any)) {
	given := 0
	for _, is := range []bool{!b.ExpiresAt.IsZero(), b.ExpiresIn != "", b.Permanent} {
		if is {
			given++
		}
	}
	if given != 1 {
		add("expires_in", "is required, unless expires_at or permanent: true is given; give only one of them", nil)
	}
	if b.ExpiresIn != "" {
		if d, err := parseDuration(b.ExpiresIn); err != nil || d < time.Second || d > longest {
			add("expires_in", fmt.Sprintf("must be a time from 1s to %dd, such as 30m, 12h or 7d", longest/day), b.ExpiresIn)
		}
	}
	if year := b.ExpiresAt.Year(); !b.ExpiresAt.IsZero() && (year < 1971 || year > 9999) {
		add("expires_at", "must be in the future", nil)
	}
}

func (b *overrideBody) thousandths() int64 {
	if b.Factor == nil {
		return 0
	}
	return int64(*b.Factor)
}

// override is the override that the body asks for, at an instant.
func (b *overrideBody) override(org string, now time.Time) (pgstore.Override, error) {
	window, err := windowSeconds(b.WindowSize, b.Window)
	if err != nil {
		return pgstore.Override{}, err
	}
	o := pgstore.Override{
		Kind: b.Kind, Tenant: org, User: b.User, Endpoint: b.Endpoint, Credential: b.Credential, IP: b.IP, Policy: b.Policy,
		Limit: b.Limit, WindowSize: window, Burst: b.Burst, Factor: b.thousandths(), Reason: strings.TrimSpace(b.Reason),
		PublicNote: b.PublicNote, ExpiresAt: b.ExpiresAt, Permanent: b.Permanent,
	}
	if b.ExpiresIn != "" {
		d, err := parseDuration(b.ExpiresIn)
		if err != nil {
			return pgstore.Override{}, err
		}
		o.ExpiresAt = now.Add(d).Truncate(time.Microsecond)
	}
	return o, nil
}

var errWholeSeconds = errors.New("must be whole seconds, such as 30s, 1m, 1h or 1d")

// windowSeconds is a window in seconds, by either spelling; 0 when none is given.
func windowSeconds(seconds int64, text string) (int64, error) {
	if text == "" {
		return seconds, nil
	}
	const most = time.Duration(limit.MaxWindow) * time.Microsecond
	window, err := parseDuration(text)
	switch {
	case err != nil:
	case window > most:
		err = fmt.Errorf("must be at most %dd", most/day)
	case window < time.Second || window%time.Second != 0:
		err = errWholeSeconds
	}
	return int64(window / time.Second), err
}
