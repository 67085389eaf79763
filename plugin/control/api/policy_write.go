package api

import (
	"context"
	"net/http"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

type createPolicyInput struct {
	Once
	Waiting
	Force
	Body policyBody
}

func (s *Server) createPolicy(ctx context.Context, in *createPolicyInput) (*writePolicyOutput, error) {
	c := in.newChange(ctx, in.Body.Reason, "create-policy", in.Body)
	written, version, replayed, err := s.Rows.ReplayPolicy(ctx, c) // a replay needs no force
	var warnings answers.Warnings
	if err == nil {
		p := in.Body.policy()
		p.Revision = rows.Absent
		warnings, err = s.review(ctx, in.Force.Force || replayed, p)
		if err == nil && !replayed {
			written, version, err = s.Rows.PutPolicy(ctx, c, p)
		}
	}
	if err != nil {
		return nil, s.writeError("make a policy", err)
	}
	finished := s.finishWrite(ctx, policyWrites, version, in.wait(), warnings)
	return policyResponse(http.StatusCreated, c, PolicyWritten{written, finished}), nil
}

type putPolicyInput struct {
	IfMatch
	IfNoneMatch
	Waiting
	Force
	Body policyBody
}

// putPolicy creates a policy, or updates the one with the same key.
func (s *Server) putPolicy(ctx context.Context, in *putPolicyInput) (*writePolicyOutput, error) {
	const action = "put a policy"
	p := in.Body.policy()
	warnings, err := s.review(ctx, in.Force.Force, p)
	if err != nil {
		return nil, s.writeError(action, err)
	}
	put := keyedPut[rows.Policy]{
		IfMatch: in.IfMatch, IfNoneMatch: in.IfNoneMatch,
		absent: "there is no such policy: omit If-Match to create it", present: "this policy exists already",
		read:  func() (rows.Policy, error) { return s.Rows.Policy(ctx, p.Key()) },
		state: func(p rows.Policy) (string, int64) { return etag(p.ID, p.Revision), p.Revision },
		isSame: func(current rows.Policy) bool {
			d, err := rows.Compare([]rows.Policy{current}, []rows.Policy{p})
			return err == nil && d.Empty()
		},
		write: func(revision int64) (rows.Policy, int64, error) {
			p.Revision = revision
			return s.Rows.PutPolicy(ctx, newChange(ctx, in.Body.Reason), p)
		},
	}
	status, written, version, err := put.do()
	if err != nil {
		return nil, s.writeError(action, err)
	}
	finished := s.finishWrite(ctx, policyWrites, version, in.wait(), warnings)
	return policyResponse(status, rows.Change{}, PolicyWritten{written, finished}), nil
}

type putPolicyByIDInput struct {
	PolicyID
	IfMatch
	Waiting
	Force
	Body policyBody
}

func (s *Server) putPolicyByID(ctx context.Context, in *putPolicyByIDInput) (*writePolicyOutput, error) {
	const action = "change a policy"
	current, revision, err := s.policyToChange(ctx, in.ID, in.IfMatch)
	if err != nil {
		return nil, s.writeError(action, err)
	}
	p := in.Body.policy()
	p.ID, p.Revision = in.ID, revision
	if in.Body.Name == "" {
		p.Name = current.Name // the name cannot change, so it may be left out
	}
	warnings, err := s.review(ctx, in.Force.Force, p)
	if err != nil {
		return nil, s.writeError(action, err)
	}
	c := newChange(ctx, in.Body.Reason)
	written, version, err := s.Rows.PutPolicyByID(ctx, c, p)
	if err != nil {
		return nil, s.writeError(action, s.conflictError(ctx, in.ID, err))
	}
	finished := s.finishWrite(ctx, policyWrites, version, in.wait(), warnings)
	return policyResponse(http.StatusOK, c, PolicyWritten{written, finished}), nil
}

type deletePolicyInput struct {
	PolicyID
	IfMatch
	Waiting
	Reason
}

type deletedOutput struct{ Body answers.Written }

func (s *Server) deletePolicy(ctx context.Context, in *deletePolicyInput) (*deletedOutput, error) {
	const action = "delete a policy"
	_, revision, err := s.policyToChange(ctx, in.ID, in.IfMatch)
	if err != nil {
		return nil, s.writeError(action, err)
	}
	version, err := s.Rows.DeletePolicyByID(ctx, newChange(ctx, in.Reason.Reason), in.ID, revision)
	if err != nil {
		return nil, s.writeError(action, s.conflictError(ctx, in.ID, err))
	}
	return &deletedOutput{s.finishWrite(ctx, policyWrites, version, in.wait(), answers.Warnings{})}, nil
}

// policyToChange returns a policy and the revision that a write of it must find.
func (s *Server) policyToChange(ctx context.Context, id int64, match IfMatch) (rows.Policy, int64, error) {
	current, err := s.Rows.PolicyByID(ctx, id)
	if err != nil {
		return rows.Policy{}, 0, err
	}
	revision, err := match.requiredRevision(etag(id, current.Revision), current.Revision)
	return current, revision, err
}

// conflictError returns the answer to a failed write of a policy: after a conflict, the current state.
func (s *Server) conflictError(ctx context.Context, id int64, err error) error {
	if !isConflict(err) {
		return err
	}
	current, missing := s.Rows.PolicyByID(ctx, id)
	if missing != nil {
		return missing
	}
	return staleError(etag(id, current.Revision))
}
