package api

import (
	"context"
	"fmt"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

const (
	costsPath = "/v1/ratelimit/costs"
	costPath  = costsPath + "/{id}"
)

// registerCosts adds the operations on what requests to endpoints cost.
func (s *Server) registerCosts() {
	tags := []string{"costs"}
	huma.Register(s.api, operation(huma.Operation{
		OperationID: "list-costs", Method: http.MethodGet, Path: costsPath, Tags: tags,
		Summary: "List what requests to endpoints cost, ordered by id; the plugin's config may have others",
	}, readAccess), s.listCosts)
	huma.Register(s.api, operation(huma.Operation{
		OperationID: "put-cost", Method: http.MethodPut, Path: costsPath, Tags: tags,
		Summary: "Set what requests to an endpoint cost, in place of the cost with the same namespace and endpoint",
		Errors:  []int{http.StatusPreconditionFailed, http.StatusPreconditionRequired},
	}, writeAccess), s.putCost)
	s.describeCreated(costsPath)
	huma.Register(s.api, operation(huma.Operation{
		OperationID: "get-cost", Method: http.MethodGet, Path: costPath, Tags: tags,
		Summary: "Get what requests to an endpoint cost", Responses: notModified(), Errors: []int{http.StatusNotFound},
	}, readAccess), s.getCost)
	huma.Register(s.api, operation(huma.Operation{
		OperationID: "delete-cost", Method: http.MethodDelete, Path: costPath, Tags: tags,
		Summary: "Delete the cost of an endpoint, so that the plugin's config says again what its requests cost",
		Errors:  []int{http.StatusNotFound, http.StatusPreconditionFailed, http.StatusPreconditionRequired},
	}, writeAccess), s.deleteCost)
}

type listCostsInput struct {
	Paging
	Namespace string `query:"namespace" maxLength:"64"`
	Endpoint  string `query:"endpoint"  maxLength:"1024" doc:"As written in the cost; the names of parameters do not matter."`
}

type listCostsOutput struct{ Body answers.Page[rows.Cost] }

func (s *Server) listCosts(ctx context.Context, in *listCostsInput) (*listCostsOutput, error) {
	list := []rows.Cost{}
	for cost, err := range s.Rows.EachCost(ctx, rows.CostFilter{
		Namespace: in.Namespace, Endpoint: in.Endpoint, After: in.afterID(), Max: in.Limit + 1,
	}) {
		if err != nil {
			return nil, s.readError("list costs", err)
		}
		list = append(list, cost)
	}
	return &listCostsOutput{newPage(list, in.Limit, func(c rows.Cost) int64 { return c.ID })}, nil
}

// CostID is the id of a cost in a path.
type CostID struct {
	ID int64 `path:"id" minimum:"1" example:"7"`
}

type getCostInput struct {
	CostID
	IfNoneMatch
}

func (s *Server) getCost(ctx context.Context, in *getCostInput) (*getOutput[rows.Cost], error) {
	cost, err := s.Rows.CostByID(ctx, in.ID)
	if err != nil {
		return nil, s.readError("read a cost", err)
	}
	return answerGet(in.IfNoneMatch, costTag(cost), cost)
}

func costTag(c rows.Cost) string { return fmt.Sprintf(`"cost-%d-%d"`, c.ID, c.Revision) }

// costBody is a cost as a caller writes it.
type costBody struct {
	ID       int64 `json:"id,omitempty"       doc:"As returned by a read; a write ignores it."`
	Revision int64 `json:"revision,omitempty" doc:"As returned by a read; a write ignores it and uses If-Match."`

	schema.Cost

	Reason string `json:"reason,omitempty" maxLength:"1024" doc:"Why; recorded in the audit. Default: changed by the API."`
}

// TransformSchema describes the body.
func (*costBody) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	describeInput(s, schema.CostFields())
	s.Required = nil
	s.Extensions = map[string]any{"required": []string{"endpoint", "cost"}}
	return s
}

// Resolve implements [huma.Resolver]: it reports faults that the schema does not cover.
func (b *costBody) Resolve(huma.Context) []error {
	faults := notTexts("body", textField{"namespace", b.Namespace}, textField{"endpoint", b.Endpoint})
	if b.Reason != "" {
		faults = append(faults, reasonFaults("body.reason", b.Reason)...)
	}
	for _, f := range policy.CostFaults(b.Cost) {
		faults = append(faults, fault("body."+f.Path, f.Message, nil))
	}
	return faults
}

type putCostInput struct {
	IfMatch
	IfNoneMatch
	Waiting
	Body costBody
}

// CostWritten is a cost after a write.
type CostWritten struct {
	Cost rows.Cost `json:"cost"`
	answers.Written
}

type putCostOutput struct {
	Status   int
	ETag     string `header:"ETag"`
	Location string `header:"Location" doc:"Where the cost is."`
	Body     CostWritten
}

// putCost creates a cost, or updates the one with the same namespace and endpoint.
func (s *Server) putCost(ctx context.Context, in *putCostInput) (*putCostOutput, error) {
	desired := rows.Cost{Cost: in.Body.Cost}
	put := keyedPut[rows.Cost]{
		IfMatch: in.IfMatch, IfNoneMatch: in.IfNoneMatch,
		absent:  "no cost is set for this endpoint: omit If-Match to set it",
		present: "this endpoint has a cost already",
		read:    func() (rows.Cost, error) { return s.Rows.Cost(ctx, desired.Namespace, desired.Endpoint) },
		state:   func(c rows.Cost) (string, int64) { return costTag(c), c.Revision },
		isSame:  func(current rows.Cost) bool { return current.Equal(desired) },
		write: func(revision int64) (rows.Cost, int64, error) {
			desired.Revision = revision
			return s.Rows.PutCost(ctx, newChange(ctx, in.Body.Reason), desired)
		},
	}
	status, cost, version, err := put.do()
	if err != nil {
		return nil, s.writeError("put a cost", err)
	}
	return &putCostOutput{
		Status: status, ETag: costTag(cost), Location: fmt.Sprint(costsPath, "/", cost.ID),
		Body: CostWritten{cost, s.finishWrite(ctx, costWrites, version, in.wait(), s.warnOfCost(ctx, cost))},
	}, nil
}

type deleteCostInput struct {
	CostID
	IfMatch
	Waiting
	Reason
}

func (s *Server) deleteCost(ctx context.Context, in *deleteCostInput) (*deletedOutput, error) {
	const action = "delete a cost"
	current, err := s.Rows.CostByID(ctx, in.ID)
	if err != nil {
		return nil, s.writeError(action, err)
	}
	revision, err := in.requiredRevision(costTag(current), current.Revision)
	if err != nil {
		return nil, err
	}
	version, err := s.Rows.DeleteCost(ctx, newChange(ctx, in.Reason.Reason), in.ID, revision)
	if isConflict(err) {
		return nil, staleError("") // the tag of the current state was not read
	}
	if err != nil {
		return nil, s.writeError(action, err)
	}
	return &deletedOutput{s.finishWrite(ctx, costWrites, version, in.wait(), answers.Warnings{})}, nil
}
