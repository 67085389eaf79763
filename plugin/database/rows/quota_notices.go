package rows

import (
	"context"
	"iter"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// QuotaNotice is a notice that a tenant has used a percentage of a quota.
type QuotaNotice struct {
	NoticedAt   time.Time  `json:"noticed_at"`
	Tenant      string     `json:"org_id"`
	Policy      string     `json:"policy"`
	PolicyID    int64      `json:"policy_id,omitempty" db:"-"`
	Tier        string     `json:"tier,omitempty" db:"-"` // whose list in the config has the policy
	Endpoint    string     `json:"endpoint"`
	Threshold   int64      `json:"threshold"`
	Limit       int64      `json:"limit"`
	Used        int64      `json:"used"`
	WindowStart time.Time  `json:"window_start"`
	WindowEnd   time.Time  `json:"window_end"`
	ExhaustedAt *time.Time `json:"exhausted_at"`
	Late        bool       `json:"late"`
}

// QuotaNotices yields the last notices of a tenant since a time, or of all tenants if its name is empty, newest first.
// It holds a connection until it ends.
func (s *Store) QuotaNotices(
	ctx context.Context, tenant string, since time.Time, most int,
) iter.Seq2[QuotaNotice, error] {
	all := each[QuotaNotice](ctx, s.pool, "read notices of quotas", `
		SELECT noticed_at, tenant, policy, endpoint, threshold::bigint, "limit", used, window_start, window_end,
			exhausted_at, late
		FROM rate_limiter.quota_notices WHERE ($1 = '' OR tenant = $1) AND noticed_at >= $2
		ORDER BY noticed_at DESC, tenant COLLATE "C", policy COLLATE "C", endpoint COLLATE "C" LIMIT $3`,
		tenant, since, most)
	return func(yield func(QuotaNotice, error) bool) {
		for n, err := range all {
			ref := policy.ParseRef(n.Policy)
			n.Policy, n.PolicyID, n.Tier = ref.Name, ref.Row, ref.Tier
			if !yield(n, err) {
				return
			}
		}
	}
}
