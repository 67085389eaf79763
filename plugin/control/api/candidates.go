package api

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

const (
	candidatesPath = "/v1/ratelimit/candidates"
	candidatePath  = candidatesPath + "/{name}"
)

// registerCandidates adds the operations on candidates.
func (s *Server) registerCandidates() {
	define := func(id, method, path, summary, description string, needs access, codes ...int) huma.Operation {
		return operation(huma.Operation{
			OperationID: id, Method: method, Path: path, Tags: []string{"candidates"}, Summary: summary,
			Description: description, Errors: codes,
		}, needs)
	}
	const (
		get, post, put, remove = http.MethodGet, http.MethodPost, http.MethodPut, http.MethodDelete
		missing, conflict      = http.StatusNotFound, http.StatusConflict
	)
	serve(s, define("list-candidates", get, candidatesPath, "List candidates, the newest first", "", readAccess),
		"list candidates", func(ctx context.Context, _ *struct{}) (answers.CandidateList, error) {
			list, err := s.Rows.Candidates(ctx)
			return answers.CandidateList{Items: append([]rows.Candidate{}, list...)}, err
		})
	create := define("create-candidate", post, candidatesPath, "Open a candidate, which changes no policy yet",
		"At most one is open. A name is used once.", writeAccess, conflict)
	create.DefaultStatus = http.StatusCreated
	huma.Register(s.api, create, s.createCandidate)
	serve(s, define("get-candidate", get, candidatePath, "Get a candidate", "", readAccess, missing), "read a candidate",
		func(ctx context.Context, in *CandidateName) (rows.Candidate, error) {
			return s.Rows.Candidate(ctx, in.Name)
		})
	huma.Register(s.api, define("drop-candidate", remove, candidatePath, "End an open candidate without an effect", "",
		writeAccess, missing, conflict), s.dropCandidate)
	serve(s, define("diff-candidate", get, candidatePath+"/diff",
		"Show what a candidate changes, and how the active policies have moved since its base", "", readAccess, missing),
		"compare a candidate", func(ctx context.Context, in *CandidateName) (rows.CandidateDiff, error) {
			return s.Rows.CandidateDiff(ctx, in.Name)
		})
	serve(s, define("report-candidate", get, candidatePath+"/report",
		"Show which requests a candidate would answer differently",
		"Nodes count requests of tenants for which it is not enforced, and report every 5 seconds.", readAccess, missing),
		"report a candidate", func(ctx context.Context, in *reportCandidateInput) (rows.CandidateReport, error) {
			return s.Rows.CandidateReport(ctx, in.Name, in.CandidateReportFilter)
		})
	huma.Register(s.api, define("put-candidate-policy", put, candidatePath+"/policies",
		"Make a candidate create a policy, or replace the active one of the same key",
		"A policy that is put as it is active is no change.", writeAccess, missing, conflict), s.putCandidatePolicy)
	huma.Register(s.api, define("delete-candidate-policy", remove, candidatePath+"/policies",
		"Make a candidate delete an active policy, or forget its own", "", writeAccess, missing, conflict),
		s.deleteCandidatePolicy)
	huma.Register(s.api, define("assign-candidate", post, candidatePath+"/assign", "Enforce a candidate for some tenants",
		"The candidate decides for them in place of the active policies, on the same buckets.", writeAccess, missing,
		conflict), s.assignCandidate)
	huma.Register(s.api, define("promote-candidate", post, candidatePath+"/promote",
		"Apply the changes of a candidate to the active policies, in one change",
		"A 409 lists the policies that have changed since its base: rebase it once you have compared them.", writeAccess,
		missing, conflict), s.promoteCandidate)
	huma.Register(s.api, define("roll-back-candidate", post, candidatePath+"/rollback",
		"Restore the policies that the promotion of a candidate has replaced, in one change",
		"A 409 lists those that have changed since the promotion.", writeAccess, missing, conflict), s.rollBackCandidate)
	huma.Register(s.api, define("rebase-candidate", post, candidatePath+"/rebase",
		"Make the active policies the base of a candidate, after they have moved", "", writeAccess, missing, conflict),
		s.rebaseCandidate)
}

// CandidateName is the name of a candidate in a path.
type CandidateName struct {
	Name string `path:"name" minLength:"1" maxLength:"64" example:"july"`
}

type reportCandidateInput struct {
	CandidateName
	rows.CandidateReportFilter
}

// Resolve implements [huma.Resolver].
func (in *reportCandidateInput) Resolve(huma.Context) []error {
	if in.Policy != "" && in.Requests {
		return []error{fault("query.requests", "excludes policy: give only one of them", nil)}
	}
	return nil
}
