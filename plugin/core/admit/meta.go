package admit

import (
	"context"
	"fmt"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// Meta bounds the requests of one tenant that this node decides about, whatever the policies say. It protects the
// limiter itself from a runaway tenant. It is immutable; a nil Meta bounds nothing.
type Meta struct {
	buckets   Buckets // of this process, apart from all others
	namespace string
	policy    *policy.Policy
}

// NewMeta returns a limit of perSecond requests a second for each tenant. buckets must not block.
func NewMeta(perSecond int64, namespace string, buckets Buckets) (*Meta, error) {
	l, err := limit.New(limit.Spec{Algorithm: limit.TokenBucket, Quantity: perSecond, Window: limit.Second})
	if err != nil {
		return nil, err
	}
	return &Meta{
		buckets:   buckets,
		namespace: namespace,
		policy:    &policy.Policy{Name: "meta_limit", Scope: policy.Tenant, Limit: l},
	}, nil
}

// wait returns the time until this node decides about a request of the tenant; 0: now.
func (m *Meta) wait(ctx context.Context, id *identity.Identity) (limit.Micros, error) {
	if m == nil || id.Tenant.Kind == identity.Unidentified {
		return 0, nil
	}
	key := policy.Key{Namespace: m.namespace, Policy: m.policy.Name, Group: policy.ByTenant, GroupID: id.Tenant.ID}
	if id.Tenant.Kind == identity.IP {
		key.Group = policy.ByIP
	}
	bounds, statuses := [1]policy.Bound{{Policy: m.policy, Key: key, Cost: 1}}, [1]decision.Status{}
	err := m.buckets.Take(ctx, bounds[:], statuses[:])
	return statuses[0].Wait, err
}

// deny denies a request that has to wait, and reports whether it did.
func (m *Meta) deny(ctx context.Context, d *decision.Decision) (bool, error) {
	wait, err := m.wait(ctx, &d.Identity)
	if err != nil {
		return false, fmt.Errorf("take the limit of requests for usage: %w", err)
	}
	if wait > 0 {
		d.Deny(decision.MetaLimited)
		d.RetryAfter = wait
	}
	return wait > 0, nil
}
