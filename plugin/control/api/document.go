package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"slices"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// maxDocument bounds the body of an operation on many rows, in bytes. Its caller may write all of them.
const maxDocument = 16 << 20

type putCandidatePoliciesBody struct {
	Policies []rows.Policy `json:"policies" minItems:"1" doc:"All of one namespace, with the fields that a read returns."`
	Reason   reason        `json:"reason" maxLength:"1024" doc:"Why; recorded in the audit." example:"smaller limits"`
}

func (s *Server) putCandidatePolicies(
	ctx context.Context, in *putInCandidateInput[putCandidatePoliciesBody],
) (done[rows.Diff], error) {
	list := in.Body.Policies
	d, err := s.putInCandidate(ctx, newChange(ctx, in.Body.Reason), in.Name, in.Force, list...)
	return d, policyAt(list, err)
}

// policyAt returns an error about a policy of a list with its place in the body.
func policyAt(list []rows.Policy, err error) error {
	invalid := new(rows.InvalidError)
	if !errors.As(err, &invalid) {
		return err
	}
	for i, p := range slices.Backward(list) {
		if p.Key().String() != invalid.What {
			continue
		}
		path := fmt.Sprintf("body.policies[%d]", i)
		if invalid.Field == "" {
			return unprocessable(fault(path, invalid.What+" "+invalid.Problem, nil))
		}
		return unprocessable(fault(path+"."+invalid.Field, invalid.Problem, nil))
	}
	return err
}

const defaultNamespace = "default"

// registerDocument adds the operations on the policies, costs and prices of a namespace with all tenants and overrides.
func (s *Server) registerDocument() {
	define := func(id, method, at, text string, writes access) huma.Operation {
		o := (&place{s, "/v1/ratelimit/document", "policies", readAccess, writes}).operation(id, method, at, text)
		o.MaxBodyBytes = maxDocument
		return o
	}
	serve(s, define("get-document", http.MethodGet, "",
		"Get the policies, costs and prices of a namespace, all tenants and the overrides that have not ended, of one version\n"+
			"The penalties of detectors are left out.", writeAccess), "read a document", s.getDocument)
	serve(s, define("diff-document", http.MethodPost, "/diff", "Show what a document would change", readAccess),
		"compare a document", s.diffDocument)
	apply := define("apply-document", http.MethodPut, "",
		"Replace the policies, costs and prices of a namespace, tenants and overrides, in one change\n"+
			"A list that is absent changes nothing. Rows that a list leaves out are deleted, unless partial is set. Overrides "+
			"that have ended are not made, and the penalties of detectors are never deleted. A 422 for a deletion, or for a "+
			"policy that needs force, has the changes as diff.", writeAccess)
	change(s, apply, "apply a document",
		func(d rows.SetDiff, w answers.Written) DocumentWritten { return DocumentWritten{d, w} }, s.applyDocument)
	for _, answer := range apply.Responses["422"].Content {
		answer.Schema = s.api.OpenAPI().Components.Schemas.Schema(reflect.TypeFor[DeclinedDocument](), true, "")
	}
}

// Document holds rows by what they say: ids and revisions are ignored in a write.
type Document struct {
	Namespace string          `json:"namespace,omitempty" maxLength:"64" doc:"Of policies, costs and prices. Default: default."`
	Policies  []rows.Policy   `json:"policies,omitzero" doc:"Of the namespace."`
	Costs     []rows.Cost     `json:"costs,omitzero" doc:"Of the namespace."`
	Prices    []rows.Price    `json:"prices,omitzero" doc:"Of the namespace, each with its starts_at."`
	Tenants   []rows.Tenant   `json:"tenants,omitzero"`
	Overrides []rows.Override `json:"overrides,omitzero" doc:"A write ignores author and source: the author is the caller."`
}

// DocumentOverride describes a [rows.Override].
type DocumentOverride rows.Override

// TransformSchema implements [huma.SchemaTransformer].
func (DocumentOverride) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	describeFields(s, schema.Fields[schema.Override]())
	return s
}

func desiredOverride(o rows.Override) rows.Override {
	o = rows.Override{Override: o.Override}
	o.Author, o.Source = "", ""
	return o
}

// Resolve implements [huma.Resolver]: it reports the faults of each row by itself.
func (d *Document) Resolve(huma.Context) []error {
	faults := listFaults("policies", d.Policies, func(p rows.Policy) []schema.Fault { return policy.Faults(p.Policy) })
	faults = append(faults, listFaults("costs", d.Costs,
		func(c rows.Cost) []schema.Fault { return policy.CostFaults(c.Cost) })...)
	faults = append(faults, listFaults("prices", d.Prices,
		func(p rows.Price) []schema.Fault { return rows.DocumentPriceFaults(p.DatedPrice) })...)
	faults = append(faults, listFaults("tenants", d.Tenants, rows.Tenant.Faults)...)
	return append(faults, listFaults("overrides", d.Overrides, func(o rows.Override) []schema.Fault {
		o = desiredOverride(o)
		o.Author = "token"
		return policy.OverrideFaults(o.Override)
	})...)
}

// listFaults returns the faults of the rows of a list with their places in the body.
func listFaults[T any](name string, list []T, find func(T) []schema.Fault) (faults []error) {
	for i, row := range list {
		faults = append(faults, faultsIn(fmt.Sprintf("body.%s[%d]", name, i), find(row))...)
	}
	return faults
}

// mapped returns the results of a function for the items of a list; nil for nil.
func mapped[T, V any](list []T, change func(T) V) []V {
	if list == nil {
		return nil
	}
	out := make([]V, len(list))
	for i, item := range list {
		out[i] = change(item)
	}
	return out
}

// Partial has how much of a namespace a document is. It is exported because huma reads it.
type Partial struct {
	Partial bool `query:"partial" doc:"Keep the rows that the lists leave out."`
}

func (s *Server) set(d *Document, p Partial) rows.Set {
	return rows.Set{
		Namespace: d.Namespace, Partial: p.Partial, KeepPolicies: d.Policies == nil,
		Policies: mapped(d.Policies, func(p rows.Policy) rows.Policy {
			p.ID, p.Revision = 0, 0
			if p.Namespace == defaultNamespace { // or absent
				p.Namespace = d.Namespace
			}
			return p
		}),
		Costs:     mapped(d.Costs, func(c rows.Cost) rows.Cost { return rows.Cost{Cost: c.Cost} }),
		Prices:    mapped(d.Prices, func(p rows.Price) rows.Price { return rows.Price{DatedPrice: p.DatedPrice} }),
		Tenants:   mapped(d.Tenants, func(t rows.Tenant) rows.Tenant { return rows.Tenant{Tenant: t.Tenant} }),
		Overrides: mapped(d.Overrides, desiredOverride),
		Config:    s.configPlan(), IsConsumer: s.IsConsumer,
	}
}

type getDocumentInput struct {
	Namespace string `query:"namespace" maxLength:"64" default:"default" doc:"Of policies, costs and prices."`
}

func (s *Server) getDocument(ctx context.Context, in *getDocumentInput) (Document, error) {
	set, err := s.Rows.Dump(ctx, in.Namespace)
	return Document{set.Namespace, set.Policies, set.Costs, set.Prices, set.Tenants, set.Overrides}, err
}

type diffDocumentInput struct {
	Partial
	Body Document
}

func (s *Server) diffDocument(ctx context.Context, in *diffDocumentInput) (rows.SetDiff, error) {
	set := s.set(&in.Body, in.Partial)
	d, err := s.Rows.Diff(ctx, set)
	return d, documentFault(set, err)
}

// DocumentDiff describes a [rows.SetDiff].
type DocumentDiff rows.SetDiff

// DocumentWritten is what a document has changed.
type DocumentWritten struct {
	Diff rows.SetDiff `json:"diff"`
	answers.Written
}

type applyDocumentInput struct {
	Partial
	Writing
	Force
	AllowDelete  bool   `query:"allow_delete"  doc:"Allow the deletion of rows."`
	ChangeReason string `query:"change_reason" maxLength:"1024" doc:"Why; recorded in the audit. Default: changed by the API."`
	Body         Document
}

// DeclinedDocument is the 422 for a document that needs a parameter, with what it would change.
type DeclinedDocument struct {
	*huma.ErrorModel
	Diff rows.SetDiff `json:"diff,omitzero" doc:"What the document would change, if it needs a parameter."`
}

func (s *Server) applyDocument(ctx context.Context, in *applyDocumentInput) (made done[rows.SetDiff], err error) {
	set := s.set(&in.Body, in.Partial)
	set.Accept = func(d rows.SetDiff, r rows.Review) error {
		made.warnings = r.Warnings
		var faults []*huma.ErrorDetail
		if d.Deletes() > 0 && !in.AllowDelete {
			faults = append(faults, fault("query.allow_delete", "must be true: the change deletes rows", nil))
		}
		if why := in.lockOut(r); why != nil {
			faults = append(faults, why)
		}
		if len(faults) == 0 {
			return nil
		}
		return &DeclinedDocument{&huma.ErrorModel{
			Title: http.StatusText(http.StatusUnprocessableEntity), Status: http.StatusUnprocessableEntity,
			Detail: invalidRequest, Errors: faults,
		}, d}
	}
	made.change = newChange(ctx, in.ChangeReason)
	d, version, err := s.Rows.Apply(ctx, made.change, set)
	made.row, made.version = d, version
	return made, documentFault(set, err)
}

// documentFault returns an error about a row of a set with its place in the body, or with the row in words.
func documentFault(set rows.Set, err error) error {
	err = policyAt(set.Policies, err)
	if invalid := new(rows.InvalidError); errors.As(err, &invalid) {
		return unprocessable(fault("body", invalid.Error(), nil))
	}
	return err
}
