package control

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/pgstore"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
)

// The action of the audit, as the operator's program writes it too.
const (
	resetOperation = "reset"
	resetKey       = "buckets"
	resetWrites    = "reset"
)

// resetNote is what a reset does not do.
const resetNote = "Tokens that nodes have out on lease are not recalled: they can be spent beside the full bucket, at most " +
	"the nodes' lease share of each limit that may be leased. A node that has just been refused may refuse for a second more."

// resetBody says which buckets are emptied.
type resetBody struct {
	Requests
	Policy  string `json:"policy,omitempty" maxLength:"64" doc:"Only buckets of the policies of this name. Default: all." example:"daily"`
	Reason  string `json:"reason,omitempty" maxLength:"1024" doc:"Why; the audit tells it. Required but for a preview." example:"billed twice"`
	Preview bool   `json:"preview,omitempty" doc:"Tell which buckets would be emptied, and do nothing."`
}

// Resolve is huma's.
func (b *resetBody) Resolve(huma.Context) []error {
	faults := b.Requests.faults("body")
	if why := checkReason(b.Reason); why != "" && (!b.Preview || strings.TrimSpace(b.Reason) != "") {
		faults = append(faults, fault("body.reason", why, nil))
	}
	return faults
}

type resetInput struct {
	OrgPath
	Once
	Body resetBody
}

// Reset is what a reset has emptied, or would.
type Reset struct {
	Org     string        `json:"org_id"`
	Preview bool          `json:"preview" doc:"Nothing was emptied."`
	Buckets []BucketUsage `json:"buckets" doc:"The buckets as they were before."`
	Note    string        `json:"note" doc:"What a reset does not do."`
}

type resetOutput struct {
	Replayed string `header:"Idempotent-Replayed" doc:"true: nothing was emptied, because the request had been answered before."`
	Body     Reset
}

// reset writes into the audit what is about to be forgotten, and then empties the buckets: a reset without a record is not
// made. One that was recorded goes on when its caller has gone.
func (s *Server) reset(ctx context.Context, in *resetInput) (*resetOutput, error) {
	found, err := s.find(ctx, in.Org, &in.Body.Requests, in.Body.Policy)
	if err != nil {
		return nil, err
	}
	before, err := s.read(ctx, found)
	if err != nil {
		return nil, err
	}
	out := &resetOutput{Body: Reset{Org: in.Org, Preview: in.Body.Preview, Buckets: before, Note: resetNote}}
	if in.Body.Preview {
		return out, nil
	}
	c := change(ctx, in.Body.Reason)
	if err := in.once(ctx, &c, "reset", in.Org, in.Body); err != nil {
		return nil, err
	}
	told, err := s.record(ctx, c, in.Org, before)
	if err != nil {
		return nil, s.problem("record the reset", err)
	}
	if out.Replayed = replayed(c); out.Replayed != "" {
		out.Body.Buckets = told
		return out, nil
	}
	keys := make([]policy.Key, len(found.bounds))
	for i := range keys {
		keys[i] = found.bounds[i].Key
	}
	if _, err := s.Buckets.Forget(context.WithoutCancel(ctx), keys); err != nil {
		return nil, s.bucketsAway("reset the buckets, of which some may be emptied and which the audit tells already "+
			"(try again with another Idempotency-Key)", err)
	}
	s.metrics.writes.WithLabelValues(resetWrites).Inc()
	return out, nil
}

// record tells a reset in the audit, and returns which buckets are told there: of a replay, those of the first time.
func (s *Server) record(ctx context.Context, c pgstore.Change, org string, before []BucketUsage) ([]BucketUsage, error) {
	details, err := json.Marshal(before)
	if err != nil {
		return nil, fmt.Errorf("write the audit: %w", err)
	}
	action := pgstore.Action{Operation: resetOperation, Key: resetKey, Tenant: org, Details: details}
	if action, err = s.Store.Record(ctx, c, action); err != nil {
		return nil, err
	}
	var told []BucketUsage
	if err := json.Unmarshal(action.Details, &told); err != nil {
		return nil, fmt.Errorf("read the audit: %w", err)
	}
	return told, nil
}
