package api

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

const policiesPath = "/v1/ratelimit/policies"

// PolicyWritten is a policy after a write.
type PolicyWritten struct {
	Policy rows.Policy `json:"policy"`
	answers.Written
}

type listPoliciesInput struct {
	Paging[int64]
	rows.PolicyFilter
}

func (s *Server) registerPolicies() {
	r := &resource[*RowPath, rows.Policy, rows.Policy, PolicyWritten]{
		place:    &place{s, policiesPath, "policies", readAccess, writeAccess},
		state:    func(p rows.Policy) (string, int64) { return etag("", p.ID, p.Revision), p.Revision },
		location: func(p rows.Policy) string { return fmt.Sprint(policiesPath, "/", p.ID) },
		show:     asItIs[rows.Policy],
		answer:   func(p rows.Policy, w answers.Written) PolicyWritten { return PolicyWritten{p, w} },
	}
	list(s, r.operation("list-policies", http.MethodGet, "", "List policies, ordered by id"), "list policies", r.show,
		func(p rows.Policy) int64 { return p.ID },
		func(ctx context.Context, in *listPoliciesInput) ([]rows.Policy, error) {
			in.After, in.Max = in.page()
			return s.Rows.Policies(ctx, in.PolicyFilter)
		})
	create(r, r.operation("create-policy", http.MethodPost, "", "Create a policy"), "make a policy", s.createPolicy)
	put(r, r.operation("put-policy", http.MethodPut, "",
		"Create a policy, or replace the one with the same namespace, name, target (such as tier or tenant) and endpoint"),
		s.putPolicy)
	get[getRow](r, r.operation("get-policy", http.MethodGet, one, "Get a policy"), "read a policy")
	put(r, r.operation("put-policy-by-id", http.MethodPut, one,
		"Change a policy; the fields that identify it cannot change", http.StatusNotFound), s.putPolicyByID)
	remove[deleteRow](r, r.operation("delete-policy", http.MethodDelete, one, "Delete a policy", conditional...),
		"delete a policy")
}

type createPolicyInput struct {
	Once
	Writing
	Force
	Body policyBody
}

func (s *Server) createPolicy(ctx context.Context, in *createPolicyInput) (made done[rows.Policy], err error) {
	made.change = changeOnce(ctx, in.Once, in.Body.Reason, in.Body)
	var replayed bool // which needs no force
	made.row, made.version, replayed, err = s.Rows.ReplayPolicy(ctx, made.change)
	if err == nil {
		p := in.Body.policy()
		p.Revision = rows.Absent
		made.warnings, err = s.review(ctx, in.Force.Force || replayed, p)
		if err == nil && !replayed {
			made.row, made.version, err = s.Rows.PutPolicy(ctx, made.change, p)
		}
	}
	return made, err
}

type putPolicyInput struct {
	IfMatch
	IfNoneMatch
	Writing
	Force
	Body policyBody
}

func (s *Server) putPolicy(ctx context.Context, in *putPolicyInput) *write[rows.Policy] {
	p := in.Body.policy()
	return &write[rows.Policy]{
		action: "put a policy",
		read:   func() (rows.Policy, error) { return s.Rows.Policy(ctx, p.Key()) },
		isSame: func(current rows.Policy) bool {
			d, err := rows.Compare([]rows.Policy{current}, []rows.Policy{p})
			return err == nil && d.Empty()
		},
		write: func(_ rows.Policy, revision int64) (d done[rows.Policy], err error) {
			p.Revision = revision
			if d.warnings, err = s.review(ctx, in.Force.Force, p); err != nil {
				return d, err
			}
			return d.with(s.Rows.PutPolicy(ctx, newChange(ctx, in.Body.Reason), p))
		},
	}
}

type putPolicyByIDInput struct {
	RowPath
	IfMatch
	Writing
	Force
	Body policyBody
}

func (s *Server) putPolicyByID(ctx context.Context, in *putPolicyByIDInput) *write[rows.Policy] {
	return &write[rows.Policy]{
		action: "change a policy",
		read:   func() (rows.Policy, error) { return rows.Read[rows.Policy](ctx, s.Rows, in.ID) },
		write: func(current rows.Policy, revision int64) (d done[rows.Policy], err error) {
			p := in.Body.policy()
			p.ID, p.Revision = in.ID, revision
			p.Name = cmp.Or(in.Body.Name, current.Name) // it cannot change, so it may be left out
			if d.warnings, err = s.review(ctx, in.Force.Force, p); err != nil {
				return d, err
			}
			return d.with(s.Rows.PutPolicyByID(ctx, newChange(ctx, in.Body.Reason), p))
		},
	}
}

// policyBody is a policy as a caller writes it. Some of its fields have other spellings.
type policyBody struct {
	ID       int64 `json:"id,omitempty"       doc:"As returned by a read; a write ignores it."                   example:"7"`
	Revision int64 `json:"revision,omitempty" doc:"As returned by a read; a write ignores it and uses If-Match." example:"3"`

	schema.Policy

	Window string `json:"window,omitempty" doc:"Another spelling of window_size, as a duration: 30s, 1m, 1h, 1d." example:"1m" maxLength:"32"`

	Reason optionalReason `json:"reason,omitempty" maxLength:"1024" doc:"Why; recorded in the audit and not shown to tenants. Default: changed by the API."`

	faults  []schema.Fault // of values by themselves
	spelled spellings
}

var policyAliases = schema.Aliases[schema.Policy]()

func (b *policyBody) UnmarshalJSON(raw []byte) error {
	type plain policyBody
	raw, spelled, err := respell(raw, policyAliases, (*plain)(b))
	if err != nil {
		return err
	}
	b.faults = schema.Decode(raw, schema.Fields[schema.Policy](), &b.Policy, true)
	b.spelled, b.Tier = spelled, spelled.tier(b.Tier)
	return nil
}

// TransformSchema describes the body: the name and the scope have defaults here, and a window has two spellings.
func (*policyBody) TransformSchema(r huma.Registry, s *huma.Schema) *huma.Schema {
	describeInput(s, schema.Fields[schema.Policy]())
	describeRecords(r)
	s.Required = nil
	s.Extensions = map[string]any{"required": []string{"limit"}}
	redescribe(s.Properties["name"], "Default: made from what the policy is for and the endpoint.")
	redescribe(s.Properties["scope"], "Default: what the policy is for, such as tenant; global for all requests.")
	redescribe(s.Properties["window_size"], "Give either window_size or window.")
	describeAliases(s, policyAliases)
	return s
}

func (b *policyBody) Resolve(huma.Context) []error {
	faults := append(b.spelled.faults("body"), windowFaults(b.WindowSize, b.Window)...)
	p := b.policy()
	for _, f := range schema.AppendNew(b.faults, schema.Faults(policy.Faults(p.Policy))) {
		name := b.spelled.name(f.Path)
		if name == "window_size" && b.Window != "" {
			name = "window"
		}
		faults = append(faults, fault("body."+name, f.Message, nil))
	}
	return faults
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

const costsPath = "/v1/ratelimit/costs"

// CostWritten is a cost after a write.
type CostWritten struct {
	Cost rows.Cost `json:"cost"`
	answers.Written
}

type listCostsInput struct {
	Paging[int64]
	rows.CostFilter
}

func (s *Server) registerCosts() {
	r := &resource[*RowPath, rows.Cost, rows.Cost, CostWritten]{
		place:    &place{s, costsPath, "costs", readAccess, writeAccess},
		state:    func(c rows.Cost) (string, int64) { return etag("cost-", c.ID, c.Revision), c.Revision },
		location: func(c rows.Cost) string { return fmt.Sprint(costsPath, "/", c.ID) },
		show:     asItIs[rows.Cost],
		answer:   func(c rows.Cost, w answers.Written) CostWritten { return CostWritten{c, w} },
		warn: func(ctx context.Context, c rows.Cost) ([]string, error) {
			return s.Rows.CostWarnings(ctx, s.configPlan(), c)
		},
	}
	list(s, r.operation("list-costs", http.MethodGet, "",
		"List what requests to endpoints cost, ordered by id; the plugin's config may have others"), "list costs", r.show,
		func(c rows.Cost) int64 { return c.ID },
		func(ctx context.Context, in *listCostsInput) ([]rows.Cost, error) {
			in.After, in.Max = in.page()
			return s.Rows.Costs(ctx, in.CostFilter)
		})
	put(r, r.operation("put-cost", http.MethodPut, "",
		"Set what requests to an endpoint cost, in place of the cost with the same namespace and endpoint"), s.putCost)
	get[getRow](r, r.operation("get-cost", http.MethodGet, one, "Get what requests to an endpoint cost"), "read a cost")
	remove[deleteRow](r, r.operation("delete-cost", http.MethodDelete, one,
		"Delete the cost of an endpoint, so that the plugin's config says again what its requests cost", conditional...),
		"delete a cost")
}

type costBody struct {
	ID       int64 `json:"id,omitempty"       doc:"As returned by a read; a write ignores it."`
	Revision int64 `json:"revision,omitempty" doc:"As returned by a read; a write ignores it and uses If-Match."`

	schema.Cost

	Reason optionalReason `json:"reason,omitempty" maxLength:"1024" doc:"Why; recorded in the audit. Default: changed by the API."`
}

// TransformSchema describes the body.
func (*costBody) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	describeInput(s, schema.Fields[schema.Cost]())
	s.Required = nil
	s.Extensions = map[string]any{"required": []string{"endpoint", "cost"}}
	return s
}

func (b *costBody) Resolve(huma.Context) []error { return faultsIn("body", policy.CostFaults(b.Cost)) }

func (s *Server) putCost(ctx context.Context, in *putInput[costBody]) *write[rows.Cost] {
	desired := rows.Cost{Cost: in.Body.Cost}
	return &write[rows.Cost]{
		action: "put a cost",
		read:   func() (rows.Cost, error) { return s.Rows.Cost(ctx, desired.Namespace, desired.Endpoint) },
		isSame: func(current rows.Cost) bool { return current.Equal(desired) },
		write: func(_ rows.Cost, revision int64) (d done[rows.Cost], err error) {
			desired.Revision = revision
			return d.with(s.Rows.PutCost(ctx, newChange(ctx, in.Body.Reason), desired))
		},
	}
}
