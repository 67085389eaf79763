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

	read bool // there was a body that could be read
}

// UnmarshalJSON reads a body, as far as it can be read.
func (b *resetBody) UnmarshalJSON(raw []byte) error {
	type plain resetBody
	b.read = isObject(raw)
	return json.Unmarshal(raw, (*plain)(b))
}

// Resolve is huma's.
func (b *resetBody) Resolve(huma.Context) []error {
	if !b.read {
		return nil
	}
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
// made. One that was recorded goes on when its caller has gone. Its Idempotency-Key is known once the buckets are empty:
// one that was not finished is recorded, and made, again when it is sent again, and never answered as if it had been.
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
	action, err := resetAction(in.Org, before)
	if err == nil {
		action, err = s.Store.Record(ctx, c, action)
	}
	if err != nil {
		return nil, s.problem("record the reset", err)
	}
	if out.Replayed = replayed(c); out.Replayed != "" {
		if err := json.Unmarshal(action.Details, &out.Body.Buckets); err != nil {
			return nil, fmt.Errorf("read the audit: %w", err)
		}
		return out, nil
	}
	if err := s.empty(ctx, c, action, found.bounds); err != nil {
		return nil, err
	}
	return out, nil
}

// resetAction is a reset of buckets as the audit tells it.
func resetAction(org string, before []BucketUsage) (pgstore.Action, error) {
	details, err := json.Marshal(before)
	return pgstore.Action{Operation: resetOperation, Key: resetKey, Tenant: org, Details: details}, err
}

// empty empties buckets, and then remembers that. The error is an answer. When it cannot be remembered, there is none:
// the buckets are empty, and who is told so has no reason to send the request again.
func (s *Server) empty(ctx context.Context, c pgstore.Change, action pgstore.Action, bounds []policy.Bound) error {
	keys := make([]policy.Key, len(bounds))
	for i := range keys {
		keys[i] = bounds[i].Key
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerTime)
	defer cancel()
	if _, err := s.Buckets.Forget(ctx, keys); err != nil {
		return s.bucketsAway("reset the buckets, of which some may be emptied and which the audit tells already (send the request again)", err)
	}
	s.metrics.writes.WithLabelValues(resetWrites).Inc()
	if err := s.Store.Done(ctx, c, action); err != nil {
		s.Log.Warn("a reset was made and its Idempotency-Key not kept: sent again, it is made again", "error", err)
	}
	return nil
}
