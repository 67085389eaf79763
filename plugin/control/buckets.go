package control

import (
	"context"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
)

// Buckets are the buckets that all nodes share, without leases or memory of refusals in front of them. A bound with a
// cost of 0 is read and not spent from.
type Buckets interface {
	admit.Buckets
	// Forget empties buckets, which gives their owners all of their limits back, and tells how many there were.
	Forget(ctx context.Context, keys []policy.Key) (int, error)
}

// patient returns the buckets for what operators ask.
func (s *Server) operatorBuckets() Buckets {
	if s.OperatorBuckets != nil {
		return s.OperatorBuckets
	}
	return s.Buckets
}
