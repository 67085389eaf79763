package control

import (
	"context"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
)

// dryRunPath is the path of requests that spend nothing: with the policies that hold now, and the shared buckets without
// leases or memory of refusals in front of them. Nobody observes what it decides, and no meta limit is spent.
func (s *Server) dryRunPath(policies *policy.Plan) *admit.Path {
	path := &admit.Path{
		Now: s.Path.Now, Elapsed: s.Path.Elapsed, Buckets: dryRunBuckets{s.Buckets, s.RequestPolicy}, Renderer: s.Path.Renderer, FailClosed: s.Path.FailClosed,
	}
	path.Policies.Store(policies)
	return path
}

// dryRunBuckets asks buckets and spends nothing. All bounds of a request are asked before any is spent, and none is if one
// refuses; so each request gets one more bound that does. That one is of no policy (they all have names), its bucket is
// never written, and there is one for each server of a cluster that may be asked, so that none of them spends even for
// a moment.
type dryRunBuckets struct {
	shared        admit.Buckets
	requestPolicy func(*policy.Policy) *policy.Policy // see [Options]
}

// Take implements [admit.Buckets], but that nothing is spent. Statuses are those of the buckets as they are, asked as a
// request would ask them.
func (u dryRunBuckets) Take(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error {
	asked := append(make([]policy.Bound, 0, 2*len(bounds)), bounds...)
	together := map[policy.Key]bool{}
	for i := range bounds {
		asked[i].Policy = u.requestPolicy(bounds[i].Policy)
		key := policy.Key{Namespace: bounds[i].Key.Namespace, Group: bounds[i].Key.Group, GroupID: bounds[i].Key.GroupID}
		if !together[key] {
			together[key] = true
			asked = append(asked, policy.Bound{Policy: denyingPolicy, Key: key, Cost: denyingCost})
		}
	}
	answers := make([]decision.Status, len(asked))
	err := u.shared.Take(ctx, asked, answers)
	copy(statuses, answers)
	for i := range statuses {
		if p := asked[i].Policy; p != bounds[i].Policy && statuses[i].Wait == limit.Never {
			statuses[i].Capacity = p.Limit.Capacity()
		}
	}
	return err
}

// denyingPolicy is a policy that refuses neverCost: it is more than a bucket of it holds.
var denyingPolicy = &policy.Policy{Scope: policy.Tenant, Limit: singleToken(), FailMode: policy.FailOpen}

const denyingCost = 2

func singleToken() limit.Limit {
	l, err := limit.New(limit.Spec{Algorithm: limit.TokenBucket, Quantity: 1, Window: limit.Second, Burst: 1})
	if err != nil {
		panic(err) // the numbers above are in bounds
	}
	return l
}
