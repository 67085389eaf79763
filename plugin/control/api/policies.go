package api

import (
	"cmp"
	"context"
	"fmt"
	"net/http"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

const policiesPath = "/v1/ratelimit/policies"

// PolicyWritten is a policy after a write.
type PolicyWritten struct {
	Policy rows.Policy `json:"policy"`
	answers.Written
}

type listPoliciesInput struct {
	Paging
	rows.PolicyFilter
}

// registerPolicies adds the operations on policies.
func (s *Server) registerPolicies() {
	r := &resource[*RowPath, rows.Policy, rows.Policy, PolicyWritten]{
		place: &place{s, policiesPath, "policies", readAccess, writeAccess}, name: "policy", counted: policyWrites,
		find:     func(ctx context.Context, at *RowPath) (rows.Policy, error) { return s.Rows.PolicyByID(ctx, at.ID) },
		state:    func(p rows.Policy) (string, int64) { return etag(p.ID, p.Revision), p.Revision },
		location: func(p rows.Policy) string { return fmt.Sprint(policiesPath, "/", p.ID) },
		show:     asItIs[rows.Policy],
		answer:   func(p rows.Policy, w answers.Written) PolicyWritten { return PolicyWritten{p, w} },
	}
	list(s, r.operation("list-policies", http.MethodGet, "", "List policies, ordered by id"), "list policies", r.show,
		func(p rows.Policy) string { return cursor(p.ID) },
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
	remove(r, r.operation("delete-policy", http.MethodDelete, one, "Delete a policy", conditional...), "delete a policy",
		func(ctx context.Context, c rows.Change, in *deleteRow, revision int64) (int64, error) {
			return s.Rows.DeletePolicyByID(ctx, c, in.ID, revision)
		})
}

type createPolicyInput struct {
	Once
	Waiting
	Force
	Body policyBody
}

func (s *Server) createPolicy(ctx context.Context, in *createPolicyInput) (made done[rows.Policy], err error) {
	made.change = in.newChange(ctx, in.Body.Reason, "create-policy", in.Body)
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
	Waiting
	Force
	Body policyBody
}

// putPolicy creates a policy, or updates the one with the same key.
func (s *Server) putPolicy(ctx context.Context, in *putPolicyInput) *write[rows.Policy] {
	p := in.Body.policy()
	return &write[rows.Policy]{
		action: "put a policy",
		absent: "there is no such policy: omit If-Match to create it", present: "this policy exists already",
		read: func() (rows.Policy, error) { return s.Rows.Policy(ctx, p.Key()) },
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
	Waiting
	Force
	Body policyBody
}

func (s *Server) putPolicyByID(ctx context.Context, in *putPolicyByIDInput) *write[rows.Policy] {
	return &write[rows.Policy]{
		action: "change a policy",
		read:   func() (rows.Policy, error) { return s.Rows.PolicyByID(ctx, in.ID) },
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
