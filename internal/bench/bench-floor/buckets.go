package main

import (
	"context"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/response"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// build implements phase.Build.
func build(config schema.Config, plan *resolve.Plan) (*admit.Decider, func(), error) {
	decider := &admit.Decider{Buckets: fullBuckets{}, Renderer: response.New(config, nil)}
	decider.Policies.Store(plan)
	return decider, nil, nil
}

// fullBuckets are buckets that are always full.
type fullBuckets struct{}

// Take implements admit.Buckets.
func (fullBuckets) Take(_ context.Context, bounds []policy.Bound, statuses []decision.Status) error {
	for i := range bounds {
		statuses[i] = decision.Status{
			Status: limit.Status{Used: 1, Remaining: bounds[i].Policy.Limit.Spec().Quantity - 1, Reset: limit.Second},
			Source: decision.Memory, Charged: true,
		}
	}
	return nil
}
