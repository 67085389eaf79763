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

const costsPath = "/v1/ratelimit/costs"

// CostWritten is a cost after a write.
type CostWritten struct {
	Cost rows.Cost `json:"cost"`
	answers.Written
}

type listCostsInput struct {
	Paging
	rows.CostFilter
}

// registerCosts adds the operations on what requests to endpoints cost.
func (s *Server) registerCosts() {
	r := &resource[*RowPath, rows.Cost, rows.Cost, CostWritten]{
		place: &place{s, costsPath, "costs", readAccess, writeAccess}, name: "cost",
		find: func(ctx context.Context, at *RowPath) (rows.Cost, error) { return s.Rows.CostByID(ctx, at.ID) },
		state: func(c rows.Cost) (string, int64) {
			return fmt.Sprintf(`"cost-%d-%d"`, c.ID, c.Revision), c.Revision
		},
		location: func(c rows.Cost) string { return fmt.Sprint(costsPath, "/", c.ID) },
		show:     asItIs[rows.Cost],
		answer:   func(c rows.Cost, w answers.Written) CostWritten { return CostWritten{c, w} },
		warn: func(ctx context.Context, c rows.Cost) ([]string, error) {
			return s.Rows.CostWarnings(ctx, s.configPlan(), c)
		},
	}
	list(s, r.operation("list-costs", http.MethodGet, "",
		"List what requests to endpoints cost, ordered by id; the plugin's config may have others"), "list costs", r.show,
		func(c rows.Cost) string { return cursor(c.ID) },
		func(ctx context.Context, in *listCostsInput) ([]rows.Cost, error) {
			in.After, in.Max = in.page()
			return s.Rows.Costs(ctx, in.CostFilter)
		})
	put(r, r.operation("put-cost", http.MethodPut, "",
		"Set what requests to an endpoint cost, in place of the cost with the same namespace and endpoint"), s.putCost)
	get[getRow](r, r.operation("get-cost", http.MethodGet, one, "Get what requests to an endpoint cost"), "read a cost")
	remove(r, r.operation("delete-cost", http.MethodDelete, one,
		"Delete the cost of an endpoint, so that the plugin's config says again what its requests cost", conditional...),
		"delete a cost", func(ctx context.Context, c rows.Change, in *deleteRow, revision int64) (int64, error) {
			return s.Rows.DeleteCost(ctx, c, in.ID, revision)
		})
}

// costBody is a cost as a caller writes it.
type costBody struct {
	ID       int64 `json:"id,omitempty"       doc:"As returned by a read; a write ignores it."`
	Revision int64 `json:"revision,omitempty" doc:"As returned by a read; a write ignores it and uses If-Match."`

	schema.Cost

	Reason optionalReason `json:"reason,omitempty" maxLength:"1024" doc:"Why; recorded in the audit. Default: changed by the API."`
}

// TransformSchema describes the body.
func (*costBody) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	describeInput(s, schema.CostFields())
	s.Required = nil
	s.Extensions = map[string]any{"required": []string{"endpoint", "cost"}}
	return s
}

// Resolve implements [huma.Resolver]: it reports faults that the schema does not cover.
func (b *costBody) Resolve(huma.Context) []error { return faultsIn("body", policy.CostFaults(b.Cost)) }

type putCostInput struct {
	IfMatch
	IfNoneMatch
	Waiting
	Body costBody
}

// putCost creates a cost, or updates the one with the same namespace and endpoint.
func (s *Server) putCost(ctx context.Context, in *putCostInput) *write[rows.Cost] {
	desired := rows.Cost{Cost: in.Body.Cost}
	return &write[rows.Cost]{
		action:  "put a cost",
		absent:  "no cost is set for this endpoint: omit If-Match to set it",
		present: "this endpoint has a cost already",
		read:    func() (rows.Cost, error) { return s.Rows.Cost(ctx, desired.Namespace, desired.Endpoint) },
		isSame:  func(current rows.Cost) bool { return current.Equal(desired) },
		write: func(_ rows.Cost, revision int64) (d done[rows.Cost], err error) {
			desired.Revision = revision
			return d.with(s.Rows.PutCost(ctx, newChange(ctx, in.Body.Reason), desired))
		},
	}
}
