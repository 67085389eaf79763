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
	huma.Register(s.api, define("list-candidates", get, candidatesPath, "List candidates, the newest first", "",
		readAccess), s.listCandidates)
	create := define("create-candidate", post, candidatesPath, "Open a candidate, which changes no policy yet",
		"At most one is open. A name is used once.", writeAccess, conflict)
	create.DefaultStatus = http.StatusCreated
	huma.Register(s.api, create, s.createCandidate)
	huma.Register(s.api, define("get-candidate", get, candidatePath, "Get a candidate", "", readAccess, missing),
		s.getCandidate)
	huma.Register(s.api, define("drop-candidate", remove, candidatePath, "End an open candidate without an effect", "",
		writeAccess, missing, conflict), s.dropCandidate)
	huma.Register(s.api, define("diff-candidate", get, candidatePath+"/diff",
		"Show what a candidate changes, and how the active policies have moved since its base", "", readAccess, missing),
		s.diffCandidate)
	huma.Register(s.api, define("report-candidate", get, candidatePath+"/report",
		"Show which requests a candidate would answer differently",
		"Nodes count requests of tenants for which it is not enforced, and report every 5 seconds.", readAccess, missing),
		s.reportCandidate)
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

type candidateOutput struct{ Body rows.Candidate }

func (s *Server) getCandidate(ctx context.Context, in *CandidateName) (*candidateOutput, error) {
	c, err := s.Rows.Candidate(ctx, in.Name)
	return &candidateOutput{c}, s.readError("read a candidate", err)
}

type listCandidatesOutput struct{ Body answers.CandidateList }

func (s *Server) listCandidates(ctx context.Context, _ *struct{}) (*listCandidatesOutput, error) {
	list, err := s.Rows.Candidates(ctx)
	if list == nil {
		list = []rows.Candidate{}
	}
	return &listCandidatesOutput{answers.CandidateList{Items: list}}, s.readError("list candidates", err)
}

type diffCandidateOutput struct{ Body rows.CandidateDiff }

func (s *Server) diffCandidate(ctx context.Context, in *CandidateName) (*diffCandidateOutput, error) {
	d, err := s.Rows.CandidateDiff(ctx, in.Name)
	return &diffCandidateOutput{d}, s.readError("compare a candidate", err)
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

type reportCandidateOutput struct{ Body rows.CandidateReport }

func (s *Server) reportCandidate(ctx context.Context, in *reportCandidateInput) (*reportCandidateOutput, error) {
	r, err := s.Rows.CandidateReport(ctx, in.Name, in.CandidateReportFilter)
	return &reportCandidateOutput{r}, s.readError("report a candidate", err)
}
