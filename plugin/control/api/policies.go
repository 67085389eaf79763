package api

import (
	"context"
	"fmt"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

const (
	policiesPath = "/v1/ratelimit/policies"
	policyPath   = policiesPath + "/{id}"
	policiesTag  = "policies"
)

// notModified describes the 304 of a read.
func notModified() map[string]*huma.Response {
	return map[string]*huma.Response{"304": {Description: http.StatusText(http.StatusNotModified)}}
}

// registerPolicies adds the operations on policies.
func (s *Server) registerPolicies() {
	tags := []string{policiesTag}
	huma.Register(s.api, operation(huma.Operation{
		OperationID: "list-policies", Method: http.MethodGet, Path: policiesPath, Tags: tags,
		Summary: "List policies, ordered by id",
	}, readAccess), s.listPolicies)
	huma.Register(s.api, operation(huma.Operation{
		OperationID: "create-policy", Method: http.MethodPost, Path: policiesPath, Tags: tags,
		Summary: "Create a policy", DefaultStatus: http.StatusCreated, Errors: []int{http.StatusConflict},
	}, writeAccess), s.createPolicy)
	huma.Register(s.api, operation(huma.Operation{
		OperationID: "put-policy", Method: http.MethodPut, Path: policiesPath, Tags: tags,
		Summary: "Create a policy, or replace the one with the same namespace, name, target (such as tier or tenant) and endpoint",
		Errors:  []int{http.StatusPreconditionFailed, http.StatusPreconditionRequired},
	}, writeAccess), s.putPolicy)
	s.describeCreated(policiesPath)
	huma.Register(s.api, operation(huma.Operation{
		OperationID: "get-policy", Method: http.MethodGet, Path: policyPath, Tags: tags,
		Summary: "Get a policy", Responses: notModified(), Errors: []int{http.StatusNotFound},
	}, readAccess), s.getPolicy)
	huma.Register(s.api, operation(huma.Operation{
		OperationID: "put-policy-by-id", Method: http.MethodPut, Path: policyPath, Tags: tags,
		Summary: "Change a policy; the fields that identify it cannot change",
		Errors:  []int{http.StatusNotFound, http.StatusPreconditionFailed, http.StatusPreconditionRequired},
	}, writeAccess), s.putPolicyByID)
	huma.Register(s.api, operation(huma.Operation{
		OperationID: "delete-policy", Method: http.MethodDelete, Path: policyPath, Tags: tags,
		Summary: "Delete a policy",
		Errors:  []int{http.StatusNotFound, http.StatusPreconditionFailed, http.StatusPreconditionRequired},
	}, writeAccess), s.deletePolicy)
}

// describeCreated describes the 201 of a PUT that creates, beside the 200 of one that updates.
func (s *Server) describeCreated(path string) {
	responses := s.api.OpenAPI().Paths[path].Put.Responses
	made := *responses["200"]
	made.Description = http.StatusText(http.StatusCreated)
	responses["201"] = &made
}

type listPoliciesInput struct {
	Paging
	OfTenant
	Namespace  string `query:"namespace"  maxLength:"64"`
	Name       string `query:"name"       maxLength:"64"`
	Tier       string `query:"tier"       maxLength:"64"`
	User       string `query:"user"       maxLength:"128"`
	Credential string `query:"credential" maxLength:"128"`
	IP         string `query:"ip"         maxLength:"64"   doc:"Only policies of exactly this address or network."`
	For        string `query:"for"                         doc:"Only policies for all or anonymous requests."      enum:"all,anonymous"`
	Endpoint   string `query:"endpoint"   maxLength:"1024" doc:"As written in the policy; the names of parameters do not matter."`
}

type listPoliciesOutput struct{ Body answers.Page[rows.Policy] }

func (s *Server) listPolicies(ctx context.Context, in *listPoliciesInput) (*listPoliciesOutput, error) {
	list, err := s.Rows.Policies(ctx, rows.PolicyFilter{
		Namespace: in.Namespace, Name: in.Name, Tier: in.Tier, Tenant: in.Tenant, Endpoint: in.Endpoint,
		User: in.User, Credential: in.Credential, IP: in.IP, For: in.For,
		After: in.afterID(), Max: in.Limit + 1,
	})
	if err != nil {
		return nil, s.readError("list policies", err)
	}
	return &listPoliciesOutput{newPage(list, in.Limit, func(p rows.Policy) int64 { return p.ID })}, nil
}

// PolicyID is the id of a policy in a path.
type PolicyID struct {
	ID int64 `path:"id" minimum:"1" example:"7"`
}

type getPolicyInput struct {
	PolicyID
	IfNoneMatch
}

func (s *Server) getPolicy(ctx context.Context, in *getPolicyInput) (*getOutput[rows.Policy], error) {
	p, err := s.Rows.PolicyByID(ctx, in.ID)
	if err != nil {
		return nil, s.readError("read a policy", err)
	}
	return answerGet(in.IfNoneMatch, etag(p.ID, p.Revision), p)
}

// getOutput is a resource with its ETag.
type getOutput[T any] struct {
	ETag string `header:"ETag"`
	Body T
}

// answerGet returns the answer to a conditional GET: the resource, or a 304 if the caller has this revision of it.
func answerGet[T any](given IfNoneMatch, tag string, resource T) (*getOutput[T], error) {
	if given.matches(tag) {
		return nil, conditionalAnswer(http.StatusNotModified, tag, "")
	}
	return &getOutput[T]{tag, resource}, nil
}

// PolicyWritten is a policy after a write.
type PolicyWritten struct {
	Policy rows.Policy `json:"policy"`
	answers.Written
}

type writePolicyOutput struct {
	Status   int
	ETag     string `header:"ETag"`
	Location string `header:"Location"            doc:"Where the policy is."`
	Replayed string `header:"Idempotent-Replayed" doc:"true: nothing was written, because this is a retry of an answered request."`
	Body     PolicyWritten
}

// policyResponse returns the answer to a write of a policy.
func policyResponse(status int, c rows.Change, body PolicyWritten) *writePolicyOutput {
	p := body.Policy
	return &writePolicyOutput{
		Status:   status,
		ETag:     etag(p.ID, p.Revision),
		Location: fmt.Sprint(policiesPath, "/", p.ID),
		Replayed: replayedHeader(c),
		Body:     body,
	}
}
