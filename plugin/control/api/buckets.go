package api

import (
	"context"
	"errors"
	"slices"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/store"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

// Buckets are the buckets that all nodes share, without leases or remembered denials in front of them: what the API
// needs of a store.Keeper.
type Buckets interface {
	// Peek shows how buckets stand, and how long each bound would wait, and spends nothing.
	Peek(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error
	// Forget empties buckets, which restores the full limits of their tenants, and returns how many there were.
	Forget(ctx context.Context, bounds []policy.Bound) (int, error)
	// Slots returns the slots of a concurrency limit's bucket that are held, at most so many.
	Slots(ctx context.Context, bound *policy.Bound, most int) (store.Slots, error)
}

// dryRunDecider returns a decider that peeks. It uses the given policies, and the shared buckets without leases or
// remembered denials in front of them. Its decisions reach no observer, and spend no meta
// limit and no fair share.
func (s *Server) dryRunDecider(policies *resolve.Plan) *admit.Decider {
	decider := s.Decider.With(policies, admit.TakeFunc(s.peek))
	decider.Observers, decider.Meta, decider.Shares = nil, nil, nil
	return decider
}

// peek fills in the statuses as a take would, and spends nothing. Statuses show the buckets as they are, for the
// policies that requests use.
func (s *Server) peek(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error {
	requested := slices.Clone(bounds)
	for i := range requested {
		requested[i].Policy = s.RequestPolicy(bounds[i].Policy)
	}
	err := s.Buckets.Peek(ctx, requested, statuses)
	for i := range statuses {
		if used := requested[i].Policy; used != bounds[i].Policy && statuses[i].Wait == limit.Never {
			statuses[i].Capacity = used.Limit.Capacity()
		}
	}
	return err
}

const resetNote = "Tokens that nodes hold on lease are not recalled: they can be spent in addition to the full " +
	"bucket, at most the nodes' lease share of each limit that may be leased. A node that was just denied may deny " +
	"for one more second."

type resetBody struct {
	Requests
	Policy  string         `json:"policy,omitempty"  maxLength:"64"   doc:"Only buckets of the policies of this name. Default: all."    example:"daily"`
	Reason  optionalReason `json:"reason,omitempty"  maxLength:"1024" doc:"Why; recorded in the audit. Required unless preview is set." example:"billed twice"`
	Preview bool           `json:"preview,omitempty"                  doc:"Show which buckets would be emptied, and change nothing."`
}

func (b *resetBody) Resolve(ctx huma.Context, at *huma.PathBuffer) []error {
	faults := b.Requests.Resolve(ctx, at)
	if !b.Preview && b.Reason == "" {
		faults = append(faults, fault("body.reason", reasonProblem, nil))
	}
	return faults
}

// Reset lists the buckets that a reset has emptied, or would empty.
type Reset struct {
	Org     string                `json:"org_id"`
	Preview bool                  `json:"preview" doc:"Nothing was emptied."`
	Buckets []answers.BucketUsage `json:"buckets" doc:"The buckets as they were before."`
	Note    string                `json:"note"    doc:"What a reset does not do."`
}

// reset records the buckets in the audit, and then empties them.
func (s *Server) reset(ctx context.Context, in *onceOfOrg[resetBody]) (out Reset, c rows.Change, err error) {
	found, err := s.findBuckets(ctx, in.Org, &in.Body.Requests, in.Body.Policy)
	if err != nil {
		return out, c, err
	}
	out = Reset{Org: in.Org, Preview: in.Body.Preview, Buckets: found.items(), Note: resetNote}
	if in.Body.Preview {
		return out, c, nil
	}
	c = changeOnce(ctx, in.Once, in.Body.Reason, in.Body)
	action, err := rows.ResetOf(in.Org, found.bounds, found.statuses)
	if err != nil {
		return out, c, err
	}
	err = s.Rows.Do(ctx, c, action, &out, func(ctx context.Context) error {
		return s.emptyBuckets(ctx, found.bounds)
	})
	if unkept := new(rows.UnkeptKeyError); errors.As(err, &unkept) {
		// The buckets are empty, so a caller that learns this has no reason to retry.
		s.Log.Warn("a reset was made but its Idempotency-Key was not stored: a retry resets again", "error", err)
		err = nil
	}
	return out, c, err
}

// emptyBuckets empties buckets. The error is an answer.
func (s *Server) emptyBuckets(ctx context.Context, bounds []policy.Bound) error {
	if _, err := s.OperatorBuckets.Forget(ctx, bounds); err != nil {
		const action = "reset the buckets (some may be empty already, and the audit has recorded the reset: retry)"
		return s.bucketsError(action, "see the log", err)
	}
	s.metrics.writes.WithLabelValues("reset").Inc()
	return nil
}
