package api

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

func (s *Server) registerCandidates() {
	const (
		get, post, put, remove = http.MethodGet, http.MethodPost, http.MethodPut, http.MethodDelete
		missing, conflict      = http.StatusNotFound, http.StatusConflict

		name, policies = "/{name}", "/{name}/policies"
	)
	define := (&place{s, "/v1/ratelimit/candidates", "candidates", readAccess, writeAccess}).operation
	ofCandidate := func(c rows.Candidate, w answers.Written) CandidateWritten { return CandidateWritten{c, w} }
	ofPolicies := func(d rows.Diff, w answers.Written) PoliciesWritten { return PoliciesWritten{d, w} }
	serve(s, define("list-candidates", get, "", "List candidates, the newest first"), "list candidates",
		func(ctx context.Context, _ *struct{}) (list answers.CandidateList, err error) {
			list.Items, err = s.Rows.Candidates(ctx)
			return list, err
		})
	create := define("create-candidate", post, "", "Open a candidate, which changes no policy yet\n"+
		"At most one is open. A name is used once.", conflict)
	create.DefaultStatus = http.StatusCreated
	change(s, create, "create a candidate", ofCandidate, s.createCandidate)
	serveTagged(s, define("get-candidate", get, name, "Get a candidate", missing), "read a candidate",
		func(c rows.Candidate) int64 { return c.Revision },
		func(ctx context.Context, in *CandidateName) (rows.Candidate, error) {
			return s.Rows.Candidate(ctx, in.Name)
		})
	change(s, define("drop-candidate", remove, name, "End an open candidate without an effect", missing, conflict, stale),
		"drop a candidate", ofCandidate, s.dropCandidate)
	serve(s, define("diff-candidate", get, name+"/diff",
		"Show what a candidate changes, and how the active policies have moved since its base", missing),
		"compare a candidate", func(ctx context.Context, in *CandidateName) (rows.CandidateDiff, error) {
			return s.Rows.CandidateDiff(ctx, in.Name)
		})
	serve(s, define("report-candidate", get, name+"/report", "Show which requests a candidate would answer differently\n"+
		"Nodes count requests of tenants for which it is not enforced, and report every 5 seconds.", missing),
		"report a candidate", func(ctx context.Context, in *reportCandidateInput) (rows.CandidateReport, error) {
			return s.Rows.CandidateReport(ctx, in.Name, in.CandidateReportFilter)
		})
	change(s, define("put-candidate-policy", put, policies,
		"Make a candidate create a policy, or replace the active one of the same key\n"+
			"A policy that is put as it is active is no change.", missing, conflict, stale),
		"put a policy of a candidate", ofPolicies, s.putCandidatePolicy)
	several := define("put-candidate-policies", post, policies, "Make a candidate create or replace policies\n"+
		"A policy that is put as it is active is no change.", missing, conflict, stale)
	several.MaxBodyBytes = maxDocument
	change(s, several, "put policies of a candidate", ofPolicies, s.putCandidatePolicies)
	change(s, define("delete-candidate-policy", remove, policies,
		"Make a candidate delete an active policy, or forget its own", missing, conflict, stale),
		"delete a policy of a candidate", ofPolicies, s.deleteCandidatePolicy)
	change(s, define("assign-candidate", post, name+"/assign", "Enforce a candidate for some tenants\n"+
		"The candidate decides for them in place of the active policies, on the same buckets.", missing, conflict, stale),
		"assign tenants to a candidate", ofCandidate, s.assignCandidate)
	change(s, define("promote-candidate", post, name+"/promote",
		"Apply the changes of a candidate to the active policies, in one change\n"+
			"A 409 lists the policies that have changed since its base: rebase it once you have compared them.",
		missing, conflict, stale), "promote a candidate", ofPolicies, s.promoteCandidate)
	change(s, define("roll-back-candidate", post, name+"/rollback",
		"Restore the policies that the promotion of a candidate has replaced, in one change\n"+
			"A 409 lists those that have changed since the promotion.", missing, conflict, stale),
		"roll back a candidate", ofPolicies, s.rollBackCandidate)
	change(s, define("rebase-candidate", post, name+"/rebase",
		"Make the active policies the base of a candidate, after they have moved", missing, conflict, stale),
		"rebase a candidate", ofCandidate, s.rebaseCandidate)
}

// CandidateName is the name of a candidate in a path.
type CandidateName struct {
	Name string `path:"name" minLength:"1" maxLength:"64" example:"july"`
}

type reportCandidateInput struct {
	CandidateName
	rows.CandidateReportFilter
}

func (in *reportCandidateInput) Resolve(huma.Context) []error {
	if in.Policy != "" && in.Requests {
		return []error{fault("query.requests", "excludes policy: give only one of them", nil)}
	}
	return nil
}

type requiredReason struct {
	Reason reason `json:"reason" maxLength:"1024" doc:"Why; recorded in the audit." example:"smaller limits"`
}

// CandidateWritten is a candidate after a write.
type CandidateWritten struct {
	Candidate rows.Candidate `json:"candidate"`
	answers.Written
}

// PoliciesWritten is what a write by a candidate changes in policies.
type PoliciesWritten struct {
	Diff rows.Diff `json:"diff" doc:"What it changes in the active policies."`
	answers.Written
}

type candidateInput[B any] struct {
	CandidateName
	Match
	Once
	Writing
	Body B
}

// forcedInput is a write of a candidate whose policies may need force.
type forcedInput[B any] struct {
	CandidateName
	Match
	Once
	Writing
	Force
	Body B
}

type createCandidateBody struct {
	Name   string `json:"name"   maxLength:"64"   doc:"1 to 64 letters, digits, dots, dashes or underscores." example:"july"`
	Reason reason `json:"reason" maxLength:"1024" doc:"Why; recorded in the audit."                           example:"smaller limits"`
}

type createCandidateInput struct {
	Once
	Writing
	Body createCandidateBody
}

func (s *Server) createCandidate(ctx context.Context, in *createCandidateInput) (done[rows.Candidate], error) {
	c := changeOnce(ctx, in.Once, in.Body.Reason, in.Body)
	return done[rows.Candidate]{change: c}.with(s.Rows.CreateCandidate(ctx, c, in.Body.Name))
}

type dropCandidateInput struct {
	CandidateName
	Match
	Writing
	Reason
}

func (s *Server) dropCandidate(ctx context.Context, in *dropCandidateInput) (done[rows.Candidate], error) {
	c := newChange(ctx, in.Reason.Reason)
	return done[rows.Candidate]{change: c}.with(s.Rows.DropCandidate(ctx, c, in.Name))
}

type putInCandidateInput[B any] struct {
	CandidateName
	Match
	Writing
	Force
	Body B
}

func (s *Server) putCandidatePolicy(ctx context.Context, in *putInCandidateInput[policyBody]) (done[rows.Diff], error) {
	return s.putInCandidate(ctx, newChange(ctx, in.Body.Reason), in.Name, in.Force, in.Body.policy())
}

// putInCandidate puts policies into a candidate, unless one of them needs force.
func (s *Server) putInCandidate(
	ctx context.Context, c rows.Change, candidate string, f Force, list ...rows.Policy,
) (d done[rows.Diff], err error) {
	review, err := s.Rows.Review(ctx, s.configPlan(), candidate, list...)
	if why := f.lockOut(review); err == nil && why != nil {
		err = unprocessable(why)
	}
	if err != nil {
		return d, err
	}
	d.warnings = review.Warnings
	return d.with(s.Rows.PutCandidatePolicies(ctx, c, candidate, list...))
}

type deleteCandidatePolicyInput struct {
	CandidateName
	Match
	Writing
	Reason
	OfTenant
	Policy     string `query:"policy"     maxLength:"64"   required:"true" doc:"The name of the policy." example:"daily"`
	Tier       string `query:"tier"       maxLength:"64"   doc:"Its tier. One of tier, tenant, credential, ip and for is required."`
	User       string `query:"user"       maxLength:"128"  doc:"Its user, of the tenant."`
	Credential string `query:"credential" maxLength:"128"  doc:"Its credential."`
	IP         string `query:"ip"         maxLength:"64"   doc:"Its address or network."`
	For        string `query:"for"                         doc:"It is for all or for anonymous requests." enum:"all,anonymous"`
	Endpoint   string `query:"endpoint"   maxLength:"1024" doc:"As written in the policy; the names of parameters do not matter."`
	Namespace  string `query:"namespace"  maxLength:"64"   doc:"Default: default."`
	Undo       bool   `query:"undo"                        doc:"Take back what the candidate changes in the policy: the active one stays as it is."`
}

func (s *Server) deleteCandidatePolicy(ctx context.Context, in *deleteCandidatePolicyInput) (done[rows.Diff], error) {
	p := rows.Policy{Policy: schema.Policy{
		Namespace: in.Namespace, Tier: in.Tier, Tenant: in.Tenant, User: in.User, Credential: in.Credential, IP: in.IP,
		For: in.For, Limit: schema.Limit{Name: in.Policy, Endpoint: in.Endpoint},
	}}
	var d done[rows.Diff]
	if faults := faultsIn("query", p.TargetFaults()); len(faults) > 0 {
		return d, huma.Error422UnprocessableEntity(invalidRequest, faults...)
	}
	c, key := newChange(ctx, in.Reason.Reason), p.Key()
	if !in.Undo {
		return d.with(s.Rows.DeleteCandidatePolicy(ctx, c, in.Name, key))
	}
	version, err := s.Rows.UndoCandidatePolicy(ctx, c, in.Name, key)
	return d.with(rows.Diff{}, version, err)
}

type assignBody struct {
	Percent *int64   `json:"percent,omitempty" minimum:"0"      maximum:"100" doc:"Of all tenants, by a hash of their names: a larger percentage keeps the tenants of a smaller one. Absent: as before." example:"5"`
	Add     []string `json:"add,omitempty"     maxItems:"1000"                doc:"Tenants to assign by name."                                            example:"[\"acme\"]"`
	Remove  []string `json:"remove,omitempty"  maxItems:"1000"                doc:"Tenants whose assignment by name is taken back."`
	Reason  reason   `json:"reason"            maxLength:"1024"               doc:"Why; recorded in the audit."                                           example:"first day"`
}

func (s *Server) assignCandidate(ctx context.Context, in *forcedInput[assignBody]) (done[rows.Candidate], error) {
	c := changeOnce(ctx, in.Once, in.Body.Reason, in.Body)
	var warnings []string
	a := rows.Assignment{
		Percent: in.Body.Percent, Add: in.Body.Add, Remove: in.Body.Remove, Approval: s.approval(in.Force, &warnings),
	}
	row, version, err := s.Rows.AssignCandidate(ctx, c, in.Name, a)
	if err == nil {
		warnings = s.warnOfWrite(ctx, func(ctx context.Context) ([]string, error) {
			unknown, err := s.Rows.AssignmentWarnings(ctx, a)
			return append(warnings, unknown...), err
		})
	}
	return done[rows.Candidate]{c, row, version, warnings}, err
}

type promoteBody struct {
	IfVersion int64  `json:"if_version,omitempty" minimum:"0"      doc:"Promote only if its policies have not changed since this version, as policies_version has it. Absent: any." example:"57"`
	Reason    reason `json:"reason"               maxLength:"1024" doc:"Why; recorded in the audit."                                                               example:"no tenant is hurt"`
}

func (s *Server) promoteCandidate(ctx context.Context, in *forcedInput[promoteBody]) (done[rows.Diff], error) {
	c := changeOnce(ctx, in.Once, in.Body.Reason, in.Body)
	var warnings []string
	p := rows.Promotion{UnchangedSince: in.Body.IfVersion, Approval: s.approval(in.Force, &warnings)}
	d, version, err := s.Rows.PromoteCandidate(ctx, c, in.Name, p)
	return done[rows.Diff]{c, d, version, warnings}, err
}

func (s *Server) rollBackCandidate(ctx context.Context, in *candidateInput[requiredReason]) (done[rows.Diff], error) {
	c := changeOnce(ctx, in.Once, in.Body.Reason, in.Body)
	return done[rows.Diff]{change: c}.with(s.Rows.RollBackCandidate(ctx, c, in.Name))
}

type rebaseBody struct {
	Version int64  `json:"version" minimum:"0"      doc:"The version of the active policies that its diff has compared." example:"57"`
	Reason  reason `json:"reason"  maxLength:"1024" doc:"Why; recorded in the audit."                                   example:"the other change is fine"`
}

func (s *Server) rebaseCandidate(ctx context.Context, in *candidateInput[rebaseBody]) (done[rows.Candidate], error) {
	c := changeOnce(ctx, in.Once, in.Body.Reason, in.Body)
	return done[rows.Candidate]{change: c}.with(s.Rows.RebaseCandidate(ctx, c, in.Name, in.Body.Version))
}
