package api

import (
	"context"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// Buckets are the buckets that all nodes share, without leases or remembered denials in front of them: what the API
// needs of a store.Store.
type Buckets interface {
	// Peek shows how buckets stand, and how long each bound would wait, and spends nothing.
	Peek(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error
	// Forget empties buckets, which restores the full limits of their tenants, and returns how many there were.
	Forget(ctx context.Context, keys []policy.Key) (int, error)
}

// operatorBuckets returns the buckets for operators, who can wait longer than requests.
func (s *Server) operatorBuckets() Buckets {
	if s.OperatorBuckets != nil {
		return s.OperatorBuckets
	}
	return s.Buckets
}
