package api

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// policyBody is a policy as a caller writes it. Some of its fields have other spellings.
type policyBody struct {
	ID       int64 `json:"id,omitempty"       doc:"As returned by a read; a write ignores it."                   example:"7"`
	Revision int64 `json:"revision,omitempty" doc:"As returned by a read; a write ignores it and uses If-Match." example:"3"`

	schema.Policy

	Window string `json:"window,omitempty" doc:"Another spelling of window_size, as a duration: 30s, 1m, 1h, 1d." example:"1m" maxLength:"32"`

	Reason string `json:"reason,omitempty" maxLength:"1024" doc:"Why; recorded in the audit and not shown to tenants. Default: changed by the API."`

	faults  []schema.Fault // of values by themselves
	spelled spellings
}

// policyAliases are the other names of the fields of a policy.
var policyAliases = schema.Aliases(schema.PolicyFields())

// UnmarshalJSON reads a body.
func (b *policyBody) UnmarshalJSON(raw []byte) error {
	type plain policyBody
	raw, spelled, err := respell(raw, policyAliases)
	if err == nil {
		err = json.Unmarshal(raw, (*plain)(b))
	}
	if err != nil {
		return err
	}
	b.faults = schema.Decode(raw, schema.PolicyFields(), &b.Policy, true)
	b.spelled, b.Tier = spelled, spelled.tier(b.Tier)
	return nil
}

// TransformSchema describes the body: the name and the scope have defaults here, and a window has two spellings.
func (*policyBody) TransformSchema(r huma.Registry, s *huma.Schema) *huma.Schema {
	describeInput(s, schema.PolicyFields())
	describeRecords(r)
	s.Required = nil
	s.Extensions = map[string]any{"required": []string{"limit"}}
	redescribe(s.Properties["name"], "Default: made from what the policy is for and the endpoint.")
	redescribe(s.Properties["scope"], "Default: what the policy is for, such as tenant; global for all requests.")
	redescribe(s.Properties["window_size"], "Give either window_size or window.")
	describeAliases(s, policyAliases)
	return s
}

// Resolve implements [huma.Resolver]: it adds the faults that the schema does not find.
func (b *policyBody) Resolve(huma.Context) []error {
	faults := b.spelled.faults("body")
	if b.Window != "" {
		if b.WindowSize != 0 {
			faults = append(faults, fault("body.window", otherSpelling("window_size"), b.Window))
		}
		if _, err := windowSeconds(b.WindowSize, b.Window); err != nil {
			faults = append(faults, fault("body.window", err.Error(), b.Window))
		}
	}
	if b.Reason != "" {
		faults = append(faults, reasonFaults("body.reason", b.Reason)...)
	}
	name := b.spelled.name
	faults = append(faults, notTexts("body", textField{name("tier"), b.Tier}, textField{name("tenant"), b.Tenant},
		textField{name("user"), b.User}, textField{"credential", b.Credential}, textField{"ip", b.IP},
		textField{name("endpoint"), b.Endpoint})...)
	p := b.policy()
	for _, f := range schema.WithRow(b.faults, policy.Faults(p.Policy)) {
		faults = append(faults, fault("body."+b.spelledField(f.Path), f.Message, nil))
	}
	return faults
}

// spelledField returns the name that the caller has used for a field.
func (b *policyBody) spelledField(field string) string {
	if field == "window_size" && b.Window != "" {
		return "window"
	}
	return b.spelled.name(field)
}

// policy returns the policy that the body requests, with the defaults of this API.
func (b *policyBody) policy() rows.Policy {
	window, _ := windowSeconds(b.WindowSize, b.Window) // faults reports an invalid one
	p := rows.Policy{Policy: b.Policy}
	p.Scope = cmp.Or(b.Scope, p.DefaultScope())
	p.WindowSize = window
	if p.Name == "" && p.Tier+p.Tenant+p.Credential+p.IP+p.For != "" {
		p.Name = derivedName(p)
	}
	return p
}

// maxSlug bounds the readable part of a derived name, in bytes. A hash after it distinguishes names with the same one.
const maxSlug = 50

// derivedName returns the name of a policy without one: always the same for what it is for and its endpoint, and
// another for others. Metrics and clients see names, so users, credentials and addresses are only in its hash.
func derivedName(p rows.Policy) string {
	endpoint := schema.CanonicalEndpoint(p.Endpoint)
	var slug strings.Builder
	for _, c := range []byte(strings.ToLower(targetSlug(p) + " " + endpoint)) {
		switch {
		case slug.Len() == maxSlug:
		case c >= 'a' && c <= 'z', c >= '0' && c <= '9', c == '_', c == '.':
			slug.WriteByte(c)
		case slug.Len() > 0 && !strings.HasSuffix(slug.String(), "-"):
			slug.WriteByte('-')
		}
	}
	name := strings.Trim(slug.String(), "-")
	if name == p.Tier {
		return name
	}
	hashed := p.Tier + "\x00" + p.Tenant + "\x00" + endpoint
	if p.User+p.Credential+p.IP+p.For != "" {
		key := p.Key()
		hashed += "\x00" + strings.Join([]string{key.User, key.Credential, key.IP, key.For}, "\x00")
	}
	sum := sha256.Sum256([]byte(hashed))
	return strings.TrimPrefix(name+"-"+hex.EncodeToString(sum[:4]), "-")
}

// targetSlug returns the readable part of what a policy is for.
func targetSlug(p rows.Policy) string {
	switch {
	case p.User != "":
		return p.Tenant + " user"
	case p.Credential != "":
		return "credential"
	case p.IP != "":
		return "ip"
	}
	return cmp.Or(p.Tier, p.Tenant, p.For)
}
