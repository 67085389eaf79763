package admit

import (
	"context"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
)

// Candidates compares the open candidate with the active policies (package plugin/node/candidate).
type Candidates interface {
	// Offer is called with every request that is decided while a candidate is open, and with its decision. It must not
	// block, and must not keep d, the identity or anything that they refer to except strings and policies.
	Offer(t Trial, d *decision.Decision)
	// Skip is called for a request that the candidate cannot be tried with, because its facts could not be read.
	Skip()
}

// Trial says what an open candidate does with a request. The zero value is for a request without one.
type Trial struct {
	Candidate   *resolve.Candidate
	Identity    *identity.Identity // under the candidate
	Enforced    bool               // the candidate has decided the request
	At          limit.Micros       // when it was decided
	Reservation string             // token of what the request has reserved; "": nothing
}

// otherFacts holds the facts and the identity of one request under a candidate that reads other facts.
type otherFacts struct {
	request  identity.Request
	identity identity.Identity
}

// trial returns what an open candidate (nil: there is none) does with an identified request. If it is enforced, the
// request has the candidate's identity. Facts that only the candidate needs are read for it alone, so that they cannot
// change the decision of another request.
func (dr *Decider) trial(ctx context.Context, source FactSource, c *resolve.Candidate, x *Exchange) (t Trial) {
	if c == nil {
		return t
	}
	t.Candidate, t.Identity = c, &x.Decision.Identity
	if !c.SameFacts {
		if x.tried == nil {
			x.tried = &otherFacts{}
		}
		x.tried.request.Reset()
		if err := Identify(ctx, source, &c.Plan.Rules, &x.tried.request, &x.tried.identity); err != nil {
			if dr.Candidates != nil {
				dr.Candidates.Skip()
			}
			return Trial{}
		}
		t.Identity = &x.tried.identity
	}
	if t.Enforced = c.Assigned(t.Identity.Tenant); t.Enforced && !c.SameFacts {
		x.Decision.Identity = *t.Identity
	}
	return t
}

// Try decides what the candidate would answer to a request that it is not enforced for, in the decider's buckets, which
// are the candidate's own, at the instant of the request. It fills in d, which no client sees. An error means that the
// buckets failed.
func (dr *Decider) Try(
	ctx context.Context, c *resolve.Candidate, id *identity.Identity, at limit.Micros, d *decision.Decision,
) error {
	d.Reset()
	d.Identity = *id
	d.Mode, d.PolicyVersion = c.Plan.Mode(), c.Plan.Version()
	c.Plan.ResolveAt(&d.Identity, at, &d.Resolution)
	checkIdentity(d, at, 0)
	if len(d.Resolution.Bounds) == 0 {
		return nil
	}
	for i := range d.Resolution.Bounds {
		d.Resolution.Bounds[i].Key.Namespace = c.Namespace
	}
	return dr.take(ctx, d, at)
}
