package api

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

// maxDocument bounds the body of an operation on many rows, in bytes. Its caller may write all of them.
const maxDocument = 16 << 20

type putCandidatePoliciesBody struct {
	Policies []rows.Policy `json:"policies" minItems:"1" doc:"All of one namespace, with the fields that a read returns."`
	Reason   string        `json:"reason" maxLength:"1024" doc:"Why; recorded in the audit." example:"smaller limits"`
}

// Resolve implements [huma.Resolver].
func (b *putCandidatePoliciesBody) Resolve(huma.Context) []error {
	return reasonFaults("body.reason", b.Reason)
}

type putCandidatePoliciesInput struct {
	CandidateName
	Waiting
	Force
	Body putCandidatePoliciesBody
}

func (s *Server) putCandidatePolicies(
	ctx context.Context, in *putCandidatePoliciesInput,
) (done[rows.Diff], error) {
	list := in.Body.Policies
	review, err := s.Rows.ReviewCandidate(ctx, s.configPlan(), in.Name, list...)
	if err == nil && !in.Force.Force {
		err = lockedOut(review)
	}
	if err != nil {
		return done[rows.Diff]{}, err
	}
	d, version, err := s.Rows.PutCandidatePolicies(ctx, newChange(ctx, in.Body.Reason), in.Name, list...)
	return done[rows.Diff]{warnings: review.Warnings}.with(d, version, policyAt(list, err))
}

// lockedOut returns the 422 for policies that would lock tenants out, or nil.
func lockedOut(r rows.Review) error {
	if faults := lockOutFaults(r); len(faults) > 0 {
		return unprocessable(faults...)
	}
	return nil
}

// lockOutFaults returns a fault for each policy that would lock tenants out.
func lockOutFaults(r rows.Review) (faults []*huma.ErrorDetail) {
	for _, l := range r.LockOuts {
		faults = append(faults, fault("query.force", fmt.Sprintf("must be true for this policy: %s: %s", l.Key, l.Why), nil))
	}
	return faults
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
