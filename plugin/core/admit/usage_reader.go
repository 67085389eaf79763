package admit

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"weak"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
)

const (
	usageReads    = 10           // reads of a tenant's buckets per second and node
	usageFresh    = limit.Second // how long an answer is given again
	maxUsageBytes = 4 << 20      // of the answers that are kept
	usageEntry    = 512          // bytes of an answer's key and place, at most in the usual
)

// UsageReader reads what tenants have used of their limits. It bounds what that costs: it keeps each answer for a
// second, and reads the buckets of a tenant at most ten times a second. It is safe for concurrent use.
type UsageReader struct {
	Answered func(status int) // counts the answers, and must not block; nil: they are not counted

	buckets Peeker
	reads   *Meta
	elapsed func() limit.Micros

	mu       sync.Mutex
	policies weak.Pointer[resolve.Plan] // by which the answers were made
	answers  map[usageKey]usageAnswer
	bytes    int // of the answers
}

// usageKey identifies a request for usage: all that its answer depends on, besides the policies and the time.
type usageKey struct {
	tenant, user     identity.Name
	tier, credential string
	ip, tags         string
	address          netip.Addr
	endpoint         string
}

// usageAnswer is the body of an answer.
type usageAnswer struct {
	body  []byte
	until limit.Micros // by the clock elapsed
}

// NewUsageReader returns a reader of buckets for configs of a namespace. local has the buckets of its own limits, which
// must not block. elapsed is a monotonic clock.
func NewUsageReader(
	buckets Peeker, namespace string, local Buckets, elapsed func() limit.Micros,
) (*UsageReader, error) {
	reads, err := NewMeta(usageReads, namespace+" usage", local) // no namespace of a config has a space
	if err != nil {
		return nil, fmt.Errorf("limit of reads: %w", err)
	}
	return &UsageReader{buckets: buckets, reads: reads, elapsed: elapsed, answers: map[usageKey]usageAnswer{}}, nil
}

// usageKeyOf returns the key of a request.
func usageKeyOf(id *identity.Identity, endpoint string) usageKey {
	return usageKey{
		tenant: id.Tenant, user: id.User, tier: id.Tier, credential: id.Credential, ip: id.IP,
		tags: strings.Join(id.Tags, "\x00"), address: id.Address, endpoint: endpoint,
	}
}

// recent returns the body of an answer that was given less than a second ago by the same policies, or nil.
func (u *UsageReader) recent(policies *resolve.Plan, key *usageKey) []byte {
	u.mu.Lock()
	defer u.mu.Unlock()
	if answer, ok := u.answers[*key]; ok && u.policies == weak.Make(policies) && u.elapsed() < answer.until {
		return answer.body
	}
	return nil
}

// keep keeps the body of an answer.
func (u *UsageReader) keep(policies *resolve.Plan, key usageKey, body []byte) {
	u.mu.Lock()
	defer u.mu.Unlock()
	size := len(body) + usageEntry
	if current := weak.Make(policies); u.policies != current || u.bytes+size > maxUsageBytes {
		clear(u.answers)
		u.policies, u.bytes = current, 0
	}
	if earlier, ok := u.answers[key]; ok {
		u.bytes -= len(earlier.body) + usageEntry
	}
	u.answers[key] = usageAnswer{body, u.elapsed() + usageFresh}
	u.bytes += size
}

// peek fills in the statuses of the bounds of d.
func (u *UsageReader) peek(ctx context.Context, d *decision.Decision) error {
	d.Grow()
	for from := 0; from < len(d.Statuses); from += usageBatch {
		to := min(from+usageBatch, len(d.Statuses))
		if err := u.buckets.Peek(ctx, d.Resolution.Bounds[from:to], d.Statuses[from:to]); err != nil {
			return fmt.Errorf("peek at %d bounds: %w", to-from, err)
		}
	}
	return nil
}
