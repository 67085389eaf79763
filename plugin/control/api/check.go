package api

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

func (s *Server) registerCheck() {
	at := &place{s, "", "decisions", decideAccess, decideAccess}
	huma.Register(s.api, at.operation("check", http.MethodPost, decisionPath,
		"Decide about one request, and spend what it costs\n"+
			"The status is 200 even if the request is denied: check allowed. The limits, the buckets and what "+
			"happens while Redis is away are the plugin's, so Kong and other callers share one budget. With reserve the same "+
			"check sent again takes nothing and gets the first answer.", http.StatusConflict), s.check)
	batch := at.operation("check-batch", http.MethodPost, batchPath,
		"Decide about up to 100 requests, one after the other, each by itself\n"+
			"If the token may not check one of them, the batch is denied and nothing is spent.")
	batch.MaxBodyBytes = maxBatchBody
	huma.Register(s.api, batch, s.checkBatch)
	huma.Register(s.api, at.operation("settle", http.MethodPost, settlePath,
		"Replace what a check has reserved by what was really used\n"+
			"Each limit that settles gets back what was too much, or is charged what was missing, even if that "+
			"empties it. The same settlement sent again changes nothing and gets the first answer.",
		http.StatusNotFound, http.StatusConflict), s.settle)
}

// Check describes a request to decide about.
type Check struct {
	Org        string `json:"org_id,omitempty"        maxLength:"1024" doc:"The org that the request is billed to. Default: none; then user_id, credential_id or ip is required, unless nothing is counted per org."                                                                                  example:"acme"`
	User       string `json:"user_id,omitempty"       maxLength:"1024" doc:"The user of the org who makes the request. Default: on_missing_user of the plugin's config applies."                                                                                                                      example:"u_42"`
	Credential string `json:"credential_id,omitempty" maxLength:"1024" doc:"The id of the credential used for the request."`
	IP         string `json:"ip,omitempty"            maxLength:"64"   doc:"The client's address. All requests without one are counted together. Where a limit is counted per address, an org's token may give one only in a dry run."                                                                example:"192.0.2.1"`
	Tier       string `json:"tier,omitempty"          maxLength:"64"   doc:"The tier that the request claims; it applies unless one is set for the org. An org's token may claim only its own tier."`
	Endpoint   string `json:"endpoint,omitempty"      maxLength:"4096" doc:"METHOD /path; a path alone, which patterns of any method match (* /records); or the name of a route, which limits per endpoint without a pattern count by. An org's token may name a route that is not in the config file only in a dry run. Default: no endpoint that a policy covers." example:"POST /records"`
	Model      string `json:"model,omitempty"         maxLength:"256"  doc:"The model that the request asks for. A limit that matches other models then reserves nothing. The model that answers is charged: see used of a settlement. An org's token may state one only in a dry run."                                                                                                                     example:"gpt-4o"`
	Provider   string `json:"provider,omitempty"      maxLength:"256"  doc:"Its provider, in the same way."`
	Cost       int64  `json:"cost,omitempty"                           doc:"Tokens. Default: the policies' cost, else 1. With an org's token it applies to the limits of the org and of its users; limits shared with other orgs count the request as 1."                                                                     minimum:"1" maximum:"1000000000"`
	DryRun     bool   `json:"dry_run,omitempty"                        doc:"Spend nothing and return what the answer would be. Shared buckets are read as they are: nodes may hold a lease share of a limit (2 % by default) in addition."`

	Reserve        *int64 `json:"reserve,omitempty"         doc:"What to take from the limits that settle, until POST /v1/ratelimit/settle replaces it by what was really used. It is in millionths of a US dollar if all limits that settle and apply are of unit usd. Else it is in tokens, and each limit of unit usd reserves what its own config says. Limits that do not settle count the request as they do without reserve. Not in a batch." minimum:"1" maximum:"1000000000000" example:"1500"`
	ReservationID  string `json:"reservation_id,omitempty"  doc:"Names the reservation, which is settled by it. Choose a new one for each request, such as a UUID. Ids of an org's token and of operators are apart. Required with reserve, unless with dry_run." minLength:"1" maxLength:"128" pattern:"^[!-~]+$" patternDescription:"visible ASCII characters" example:"chat-7f3a"`
	ReserveTimeout int64  `json:"reserve_timeout,omitempty" doc:"Seconds until a settlement returns nothing. Default, and the most for an org's token: the longest timeout of the limits that settle, 600 without one." minimum:"1" maximum:"86400"`

	Scope string `json:"scope,omitempty" doc:"What other systems count the request by, such as user, which requires user_id. All limits of the request are checked, whatever it is." example:"user" enum:"tenant,user,credential,ip,endpoint,global,tenant+endpoint,user+endpoint"`

	spelled   spellings
	knownTier string // what is known of the org where Tier is empty
}

// checkFields are the fields of a check by those of a policy.
var checkFields = map[string]string{
	"tenant": "org_id", "user": "user_id", "tier": "tier", "credential": "credential_id", "ip": "ip",
	"endpoint": "endpoint",
}

// checkAliases are the other names of the fields of a check: those of a policy's.
var checkAliases = func() (list []schema.Alias) {
	for _, a := range policyAliases {
		if field, ok := checkFields[a.Field]; ok {
			list = append(list, schema.Alias{Name: a.Name, Field: field})
		}
	}
	return list
}()

// UnmarshalJSON reads a check.
func (c *Check) UnmarshalJSON(raw []byte) error {
	type plain Check
	_, spelled, err := respell(raw, checkAliases, (*plain)(c))
	c.spelled, c.Tier = spelled, spelled.tier(c.Tier)
	return err
}

// TransformSchema describes the other names of fields.
func (*Check) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	describeAliases(s, checkAliases)
	return s
}

// Resolve implements [huma.ResolverWithPath]: it reports faults that the schema does not cover.
func (c *Check) Resolve(_ huma.Context, at *huma.PathBuffer) []error {
	faults := subjectFaults(at.String(), c.IP, c.spelled.name("endpoint"), c.Endpoint)
	name := func(part string) string { return c.spelled.name(checkFields[part]) }
	faults = append(faults, scopeFaults(at.String(), c.Scope, name, map[string]string{
		"tenant": c.Org, "user": c.User, "credential": c.Credential, "ip": c.IP, "endpoint": c.Endpoint,
	})...)
	return slices.Concat(faults, c.spelled.faults(at.String()), c.reserveFaults(at.String()))
}

// admitRequest returns the request in the form that the decision path takes.
func (c *Check) admitRequest() *admit.CallerRequest {
	r := &admit.CallerRequest{
		Caller: identity.Caller{
			Tenant: c.Org, User: c.User, Tier: cmp.Or(c.Tier, c.knownTier), Cost: c.Cost, Model: c.Model, Provider: c.Provider,
		},
		Credential: c.Credential, IP: c.IP,
	}
	r.Method, r.Path, r.Route = admit.Target(c.Endpoint)
	return r
}

func (s *Server) check(ctx context.Context, in *bodyInput[Check]) (*onceOutput[Checked], error) {
	checks := []Check{in.Body} // authorizeChecks adds what is known of the org
	policies, err := s.authorizeChecks(ctx, checks, func(int) string { return "body" })
	if err != nil {
		return nil, err
	}
	if c := &checks[0]; c.reserves() {
		return s.reserve(ctx, policies, c)
	}
	answer, _ := s.decideOne(ctx, policies, &checks[0])
	return &onceOutput[Checked]{Body: answer}, nil
}

type checkBatchInput struct {
	Body struct {
		Checks []Check `json:"checks" minItems:"1" maxItems:"100"`
	}
}

type checkBatchOutput struct {
	Body struct {
		Results []Checked `json:"results" doc:"One for each check, in the same order."`
	}
}

func (s *Server) checkBatch(ctx context.Context, in *checkBatchInput) (*checkBatchOutput, error) {
	checks, at := in.Body.Checks, func(i int) string { return fmt.Sprintf("body.checks[%d]", i) }
	policies, err := s.authorizeChecks(ctx, checks, at)
	if err != nil {
		return nil, err
	}
	var out checkBatchOutput
	out.Body.Results = make([]Checked, len(checks))
	for i := range checks {
		if ctx.Err() != nil {
			return nil, huma.Error503ServiceUnavailable(
				fmt.Sprintf("the time was up after %d of %d decisions, which were made and spent", i, len(checks)),
			)
		}
		out.Body.Results[i], _ = s.decideOne(ctx, policies, &checks[i])
	}
	return &out, nil
}

// authorizeChecks returns the plan that decides, unless the caller may not make one of the checks. The error is an
// answer.
func (s *Server) authorizeChecks(ctx context.Context, checks []Check, at func(int) string) (*resolve.Plan, error) {
	policies, err := s.loadedPlan()
	if err != nil {
		return nil, err
	}
	for i := range checks {
		if err := s.authorizeCheck(ctx, policies, &checks[i]); err != nil {
			return nil, err
		}
	}
	if err := requireIdentity(ctx, policies, checks, at); err != nil {
		return nil, err
	}
	return policies, s.checkNewSubjects(ctx, policies, checks)
}

// decideOne decides about a request that the caller may check, and returns what the caller may read of the decision.
func (s *Server) decideOne(
	ctx context.Context, policies *resolve.Plan, c *Check,
) (answer Checked, decided *decision.Decision) {
	var x admit.Exchange
	decider, v := s.Decider, s.viewOf(callerOf(ctx))
	if c.DryRun {
		decider = s.dryRunDecider(policies)
	}
	if v.tenant {
		decider = decider.With(policies, singleTokenBuckets{decider.Buckets})
	}
	if c.Reserve != nil {
		decider = decider.With(policies, reservingBuckets{decider.Buckets, *c.Reserve, v})
	}
	if err := decider.Admit(ctx, c.admitRequest(), &x); err != nil {
		s.Log.Error("decide a request: on_internal_error applies", "error", err)
	}
	d := v.filter(&x.Decision)
	answer = newChecked(d, c, s.checkNotes(policies.ForTenant(c.Org), d, c, v), v)
	answer.TierSource, answer.TierSeenAt = s.Tiers.sourceOf(d, c.Tier != "")
	return answer, &x.Decision
}

// requireIdentity returns the faults of requests without any identity where limits are counted per org: they would all
// spend from the one bucket of anonymous requests. The error is an answer.
func requireIdentity(ctx context.Context, policies *resolve.Plan, checks []Check, at func(int) string) error {
	var faults []*huma.ErrorDetail
	for i := range checks {
		if c := &checks[i]; c.Org+c.User+c.Credential+c.IP == "" {
			faults = append(faults, fault(at(i)+".org_id", `is required, such as "acme", unless user_id, credential_id or ip `+
				"is given: requests without any identity share one bucket", nil))
		}
	}
	if len(faults) == 0 {
		return nil
	}
	id, err := identify(ctx, policies, &admit.CallerRequest{Caller: identity.Caller{Tenant: "any"}})
	if err != nil || id.Tenant.Kind != identity.Tenant { // limits are not counted per org
		return err
	}
	return unprocessable(faults...)
}

// authorizeCheck returns why the caller may not check a request: a viewer may not spend, and the token of an org checks
// its own org only. The error is an answer.
func (s *Server) authorizeCheck(ctx context.Context, policies *resolve.Plan, c *Check) error {
	policies = policies.ForTenant(c.Org)
	if c.DryRun && s.Buckets == nil {
		return huma.Error503ServiceUnavailable("a dry run needs buckets that all nodes share: every node keeps its own")
	}
	id, err := identify(ctx, policies, c.admitRequest())
	if err != nil {
		return err
	}
	if id.Anonymous && c.Org != "" {
		s.Log.Error("decision path misconfigured: policies are not compiled for callers")
		return huma.Error500InternalServerError("this process is misconfigured and cannot identify orgs; nothing was decided")
	}
	if id.Tenant.Kind == identity.Tenant {
		c.knownTier = s.Tiers.Trusted(id.Tenant.ID)
	}
	caller := callerOf(ctx)
	switch {
	case caller.Role == Viewer && !c.DryRun:
		return huma.Error403Forbidden("a viewer spends nothing: set dry_run")
	case caller.Role != Tenant:
		return nil
	case !isBilledTo(id.Tenant, c.Org, caller.Org):
		return huma.Error403Forbidden("an org's token may check its own org only")
	}
	if err := s.authorizeTier(ctx, policies, &id, c.Tier); err != nil || c.DryRun {
		return err
	}
	return s.authorizeSpend(policies, &id, c)
}

// authorizeSpend returns why the token of an org may not spend for a request of its own org. It may not spend by
// address, because any org's token can name any address and would use up limits of others. It may not spend on unknown
// routes, because each would add a bucket to every limit per endpoint. It may not state a model, because another one
// would pass the limits of a model that it shares with others, and it settles none of these. The error is an answer.
func (s *Server) authorizeSpend(policies *resolve.Plan, id *identity.Identity, c *Check) error {
	if _, _, route := admit.Target(c.Endpoint); route != "" && !s.IsRoute(route) {
		return huma.Error403Forbidden(
			"an org's token may not spend on a route that is in no config or policy: name a route from the config file, " +
				"give METHOD /path, or set dry_run",
		)
	}
	if c.Model+c.Provider != "" {
		return huma.Error403Forbidden("an org's token may not state the model or the provider of a request: omit model and " +
			"provider, then every limit that could match counts it, or set dry_run")
	}
	if c.IP == "" {
		return nil
	}
	var r resolve.Resolution
	policies.ResolveAt(id, s.now(), &r)
	if slices.ContainsFunc(r.Bounds, func(b policy.Bound) bool { return b.Key.Group == policy.ByIP }) {
		return huma.Error403Forbidden("an org's token may not spend from limits per address, which all orgs share: omit " +
			"ip, or set dry_run")
	}
	return nil
}

// isBilledTo reports whether a request is billed to an org. The identity counts: a name that is too long is replaced by
// its hash, as in tokens. Where limits are not counted per org, the claimed name counts.
func isBilledTo(counted identity.Name, claimed, org string) bool {
	if counted.Kind == identity.Tenant {
		return counted.ID == org
	}
	return claimed == org
}
