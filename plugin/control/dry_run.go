package control

import (
	"context"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
)

// dryRunPath returns a decision path that spends nothing. It uses the given policies, and the shared buckets without
// leases or remembered denials in front of them. Its decisions reach no observer and spend no meta limit.
func (s *Server) dryRunPath(policies *policy.Plan) *admit.Path {
	path := &admit.Path{
		Now:        s.Path.Now,
		Elapsed:    s.Path.Elapsed,
		Buckets:    dryRunBuckets{s.Buckets, s.RequestPolicy},
		Renderer:   s.Path.Renderer,
		FailClosed: s.Path.FailClosed,
	}
	path.Policies.Store(policies)
	return path
}

// dryRunBuckets reads buckets without spending. Buckets check all bounds of a request before they spend any, and spend
// nothing if one denies; so each request gets one more bound that always denies. Its policy has no name, which no real
// policy lacks, and its bucket is never written. Each group gets one, so that every server of a cluster that takes part
// has one.
type dryRunBuckets struct {
	shared        admit.Buckets
	requestPolicy func(*policy.Policy) *policy.Policy // see [Options]
}

// Take implements [admit.Buckets], without spending. Statuses show the buckets as they are, for the policies that
// requests use.
func (u dryRunBuckets) Take(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error {
	all := append(make([]policy.Bound, 0, 2*len(bounds)), bounds...)
	denied := map[policy.Key]bool{}
	for i := range bounds {
		all[i].Policy = u.requestPolicy(bounds[i].Policy)
		key := policy.Key{Namespace: bounds[i].Key.Namespace, Group: bounds[i].Key.Group, GroupID: bounds[i].Key.GroupID}
		if !denied[key] {
			denied[key] = true
			all = append(all, policy.Bound{Policy: denyingPolicy, Key: key, Cost: denyingCost})
		}
	}
	answers := make([]decision.Status, len(all))
	err := u.shared.Take(ctx, all, answers)
	copy(statuses, answers)
	for i := range statuses {
		if p := all[i].Policy; p != bounds[i].Policy && statuses[i].Wait == limit.Never {
			statuses[i].Capacity = p.Limit.Capacity()
		}
	}
	return err
}

// denyingPolicy denies denyingCost, which is more than its bucket holds.
var denyingPolicy = &policy.Policy{Scope: policy.Tenant, Limit: singleToken(), FailMode: policy.FailOpen}

const denyingCost = 2

// singleToken returns a limit of one token.
func singleToken() limit.Limit {
	l, err := limit.New(limit.Spec{Algorithm: limit.TokenBucket, Quantity: 1, Window: limit.Second, Burst: 1})
	if err != nil {
		panic(err) // the numbers above are in bounds
	}
	return l
}
