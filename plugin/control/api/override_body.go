package api

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// Override is an override as callers read it: with an org for the tenant, and a decimal factor.
type Override struct {
	ID  int64  `json:"id"`
	Org string `json:"org,omitempty" doc:"Absent: the override applies to the requests of all orgs."`

	schema.Override // without a tenant

	State     string    `json:"state" enum:"scheduled,in_force,ended" doc:"By the clock of the database."`
	CreatedAt time.Time `json:"created_at"`
	Revision  int64     `json:"revision"`
}

// TransformSchema implements [huma.SchemaTransformer].
func (Override) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	delete(s.Properties, "tenant")
	describeFields(s, schema.FieldsWithout[schema.Override]("tenant"))
	s.Properties["kind"].Enum = mapped(schema.FieldNamed[schema.Override]("kind").OneOf,
		func(kind string) any { return kind })
	s.Required = []string{"id", "kind", "source", "state", "created_at", "revision"}
	redescribe(s.Properties["reason"], "Absent for the token of an org, as the author is.")
	s.Properties["starts_at"].Description = "When the override begins. Absent: it began when it was made."
	s.Properties["expires_at"].Description = "When the override ends. Absent: it is permanent."
	return s
}

// override returns an override as the caller reads it: a token of an org learns neither why it is there nor who made
// it.
func (v view) override(o rows.Override) Override {
	out := Override{
		ID: o.ID, Org: o.Tenant, Override: o.Override, State: o.State, CreatedAt: o.CreatedAt, Revision: o.Revision,
	}
	out.Tenant = ""
	if v.tenant {
		out.Reason, out.Author = "", ""
	}
	return out
}

type factor struct{}

// decimalPattern matches a factor: a decimal without sign or exponent.
const decimalPattern = `^[0-9]{1,4}(\.[0-9]{1,3}0*)?$`

// Schema implements [huma.SchemaProvider].
func (factor) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{
		Description: schema.FieldNamed[schema.Override]("factor").Description,
		Examples:    []any{1.5},
		Extensions: map[string]any{"oneOf": []any{ // described only: schema.Decode says better what is wrong
			map[string]any{"type": huma.TypeNumber}, map[string]any{"type": huma.TypeString, "pattern": decimalPattern},
		}},
	}
}

// instantForm describes the form of a time, which schema.Decode checks.
var instantForm = map[string]any{"type": huma.TypeString, "format": "date-time"}

// OverrideBody is an override as a caller writes it. Its org is that of the path, if the path has one. Some of its
// fields have a second spelling. It is exported because huma reads no other embedded types.
type OverrideBody struct {
	schema.Override

	Factor    any    `json:"factor,omitempty"` // of any type, as the times, so that schema.Decode finds their faults
	StartsAt  any    `json:"starts_at,omitempty"`
	ExpiresAt any    `json:"expires_at,omitempty"`
	Window    string `json:"window,omitempty"     doc:"Another spelling of window_size, as a duration: 30s, 1m, 1h, 1d." maxLength:"32"`
	ExpiresIn string `json:"expires_in,omitempty" doc:"Another spelling of expires_at, as a duration from the start: 30m, 12h, 7d." maxLength:"32" example:"7d"`
	Scope     string `json:"scope,omitempty"      doc:"What the override is for, such as user, which requires user. Nothing else follows from it." example:"user" enum:"tenant,user,credential,ip,endpoint,global,tenant+endpoint,user+endpoint"`

	faults  []schema.Fault // of values by themselves
	spelled spellings
}

var overrideAliases = schema.Aliases[schema.Override]()

// notInBody are the fields of an override that a body does not have: the org is in the path, the author is the caller,
// and this API writes commercial overrides.
var notInBody = []string{"tenant", "author", "source"}

// UnmarshalJSON reads a body.
func (b *OverrideBody) UnmarshalJSON(raw []byte) error {
	type plain OverrideBody
	raw, spelled, err := respell(raw, overrideAliases, (*plain)(b))
	if err != nil {
		return err
	}
	b.spelled = spelled
	b.faults = schema.Decode(raw, schema.FieldsWithout[schema.Override](notInBody...), &b.Override, false)
	return nil
}

// TransformSchema describes the body.
func (*OverrideBody) TransformSchema(r huma.Registry, s *huma.Schema) *huma.Schema {
	s.Properties["factor"] = factor{}.Schema(r)
	for _, name := range notInBody {
		delete(s.Properties, name)
	}
	describeInput(s, schema.FieldsWithout[schema.Override](append(notInBody, "factor")...))
	s.Required = nil
	s.Extensions = map[string]any{"required": []string{"reason"}}
	for _, name := range []string{"starts_at", "expires_at"} {
		s.Properties[name].Extensions = instantForm
	}
	s.Properties["expires_at"].Description = "When the override ends. Give one of expires_at, expires_in and permanent. " +
		"A topup ends with the period of its limit: it needs expires_at only if this process does not know the limit."
	redescribe(s.Properties["kind"], "Default: custom_limit with limit, multiplier with factor, topup with amount.")
	describeAliases(s, overrideAliases)
	return s
}

// noSubject is the problem of an override that names neither an org nor another subject.
const noSubject = "is required unless ip is given, or for an exempt tag or endpoint: an override of one org is made at " +
	"/v1/orgs/{org}/ratelimit/overrides"

// Resolve implements [huma.Resolver]: it reports faults that the schema does not cover.
func (b *OverrideBody) Resolve(ctx huma.Context) []error {
	faults := b.spelled.faults("body")
	add := func(field, problem string, value any) {
		faults = append(faults, fault("body."+b.spelled.name(field), problem, value))
	}
	faults = append(faults, scopeFaults("body", b.Scope, b.spelled.name, map[string]string{
		"user": b.User, "credential": b.Credential, "ip": b.IP, "endpoint": b.Endpoint,
	})...)
	faults = append(faults, windowFaults(b.WindowSize, b.Window)...)
	if b.ExpiresIn != "" {
		b.checkExpiresIn(add)
	}
	o, _ := b.override(ctx.Param("org"), time.Unix(0, 0)) // what is wrong with its spellings has been reported
	o.Author = "token"
	for _, f := range schema.AppendNew(b.faults, schema.Faults(policy.OverrideFaults(o.Override))) {
		switch {
		case f.Path == "tenant" && ctx.Param("org") == "":
			add("credential", noSubject, nil)
		case f.Path == "tenant": // the path's, whose faults are reported there
		case f.Path == "expires_at" && f.Message == schema.TimeForm:
			add("expires_at", f.Message, nil)
		case f.Path == "expires_at" && b.ExpiresIn != "": // its faults have been reported
		case f.Path == "expires_at" && b.Override.ExpiresAt.IsZero():
			add("expires_in", f.Message, nil)
		case f.Path == "window_size" && b.Window != "":
			add("window", f.Message, nil)
		default:
			add(f.Path, f.Message, nil)
		}
	}
	return faults
}

func (b *OverrideBody) checkExpiresIn(add func(field, problem string, value any)) {
	if !b.Override.ExpiresAt.IsZero() || b.Permanent {
		add("expires_in", "must be left out beside expires_at or permanent: give only one of them", b.ExpiresIn)
	}
	if d, err := ParseDuration(b.ExpiresIn); err != nil || d < time.Second || d > longest {
		add("expires_in", fmt.Sprintf("must be a time from 1s to %dd, such as 30m, 12h or 7d", longest/day), b.ExpiresIn)
	}
}

// override returns the override that the body describes, at an instant.
func (b *OverrideBody) override(org string, now time.Time) (rows.Override, error) {
	o := rows.Override{Override: b.Override}
	o.Tenant, o.Reason = org, strings.TrimSpace(b.Reason)
	o.Author, o.Source = "", "" // the caller, and that of what people write
	switch {
	case o.Kind != "":
	case o.Limit != 0:
		o.Kind = schema.KindCustomLimit
	case o.Factor != 0:
		o.Kind = schema.KindMultiplier
	case o.Amount != 0:
		o.Kind = schema.KindTopUp
	}
	window, err := windowSeconds(b.WindowSize, b.Window)
	if err != nil {
		return o, err
	}
	o.WindowSize = window
	if b.ExpiresIn != "" {
		d, err := ParseDuration(b.ExpiresIn)
		if err != nil {
			return o, err
		}
		if !o.StartsAt.IsZero() {
			now = o.StartsAt
		}
		o.ExpiresAt = now.Add(d).Truncate(time.Microsecond)
	}
	return o, nil
}

// windowFaults returns the faults of a window that is given by a text.
func windowFaults(seconds int64, text string) (faults []error) {
	if seconds != 0 && text != "" {
		faults = append(faults, fault("body.window", otherSpelling("window_size"), text))
	}
	if _, err := windowSeconds(seconds, text); err != nil {
		faults = append(faults, fault("body.window", err.Error(), text))
	}
	return faults
}

// windowSeconds returns a window in seconds, by either spelling; 0 when none is given.
func windowSeconds(seconds int64, text string) (int64, error) {
	if text == "" {
		return seconds, nil
	}
	const most = time.Duration(limit.MaxWindow) * time.Microsecond
	window, err := ParseDuration(text)
	switch {
	case err != nil:
	case window > most:
		err = fmt.Errorf("must be at most %dd", most/day)
	case window < time.Second || window%time.Second != 0:
		err = errors.New("must be whole seconds, such as 30s, 1m, 1h or 1d")
	}
	return int64(window / time.Second), err
}
