package admit

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"weak"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/response"
)

// Peeker reads buckets.
type Peeker interface {
	// Peek is the Peek of store.Store (package plugin/bucket/store), with the same contract.
	Peek(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error
}

const (
	usageBatch    = 64   // buckets that one call reads
	maxUsed       = 256  // limits that one answer lists
	maxEndpoint   = 1024 // bytes of the endpoint in a request
	endpointParam = "endpoint"
)

// answerUsage answers a request with what its tenant has used of its own limits (usage_only). It spends nothing, and no
// observer receives it: it is no request to the API. It returns errors as [Decider.Admit] does.
func (dr *Decider) answerUsage(ctx context.Context, source FactSource, x *Exchange) error {
	err := dr.readUsage(ctx, source, x)
	if err != nil {
		dr.Fault(x)
	}
	if dr.Usage.Answered != nil {
		dr.Usage.Answered(x.Response.Status)
	}
	return err
}

// readUsage does what answerUsage does, but for an error it sets no response.
func (dr *Decider) readUsage(ctx context.Context, source FactSource, x *Exchange) error {
	policies, d := dr.Policies.Load(), &x.Decision
	if err := Identify(ctx, source, &policies.Rules, &x.Request, &d.Identity); err != nil {
		return err
	}
	plan := policies
	if trial := dr.trial(ctx, source, policies.Candidate(), x); trial.Enforced {
		plan = policies.ForTenant(d.Identity.Tenant.ID)
	}
	switch x.Request.Method {
	case "GET", "HEAD":
	case "OPTIONS":
		x.Response.SetUsageOptions()
		return nil
	default:
		x.Response.SetUsageMethod()
		return nil
	}
	endpoint, problem := endpointOf(x.Request.Target)
	if problem != "" {
		x.Response.SetUsageFault(problem)
		return nil
	}
	body, err := dr.usage(ctx, policies, plan, endpoint, d)
	switch {
	case err != nil:
		return err
	case d.Denied():
		dr.Renderer.Render(d, false, &x.Response)
	default:
		x.Response.SetUsage(body)
	}
	return nil
}

// usage returns the answer to an identified request for usage: from memory if it was read a moment ago. It denies d if
// the request names no tenant, or the tenant is banned or sends too many requests.
func (dr *Decider) usage(
	ctx context.Context, policies, plan *resolve.Plan, endpoint string, d *decision.Decision,
) ([]byte, error) {
	switch {
	case d.Identity.Repeated != "":
		d.Deny(decision.HeaderRepeated)
		return nil, nil
	case d.Identity.Tenant.Kind != identity.Tenant:
		d.Deny(decision.TenantMissing)
		return nil, nil
	}
	if denied, err := dr.Meta.deny(ctx, d); denied || err != nil {
		return nil, err
	}
	id := &d.Identity
	key := usageKey{
		tenant: id.Tenant, user: id.User, tier: id.Tier, credential: id.Credential, ip: id.IP,
		tags: strings.Join(id.Tags, "\x00"), address: id.Address, endpoint: endpoint,
	}
	if body := dr.Usage.recent(policies, &key); body != nil {
		return body, nil
	}
	if denied, err := dr.Usage.reads.deny(ctx, d); denied || err != nil {
		return nil, err
	}
	now := readClock(dr.Now)
	truncated := dr.resolveUsage(plan, endpoint, now, d)
	if d.Resolution.Banned {
		d.Ban(now)
		return nil, nil
	}
	if err := dr.Usage.peek(ctx, d); err != nil {
		return nil, err
	}
	usage := response.NewUsage(d, endpoint)
	usage.Truncated = truncated
	body, err := json.Marshal(usage)
	if err != nil {
		return nil, fmt.Errorf("encode the usage: %w", err)
	}
	dr.Usage.keep(policies, key, body)
	return body, nil
}

// resolveUsage sets the bounds of d to the enforced ones that the tenant reads: of its requests to an endpoint, or to
// all endpoints without one. It reports whether there are more than an answer lists.
func (dr *Decider) resolveUsage(
	plan *resolve.Plan, endpoint string, now limit.Micros, d *decision.Decision,
) (more bool) {
	id := d.Identity
	id.Method, id.Path, id.Route, id.PathDecoded = "", "", "", false
	if endpoint != "" {
		method, path, route := Target(endpoint)
		normal := identity.NormalizePath(path)
		id.Method, id.Path, id.Route = strings.ToUpper(method), plan.Rules.EndpointPath(normal), route
		id.PathDecoded = id.Path != normal
	}
	shown := func(b *policy.Bound) bool { return b.Enforced() && dr.Renderer.Shows(b) && !b.Unnamed() }
	plan.ResolveAt(&id, now, &d.Resolution)
	bounds := d.Resolution.Bounds[:0]
	if endpoint != "" {
		for _, b := range d.Resolution.Bounds {
			if shown(&b) {
				bounds = append(bounds, b)
			}
		}
	} else if !d.Resolution.Exempt {
		bounds = plan.AllBounds(id, nil, now, shown)
	}
	if more = len(bounds) > maxUsed; more {
		bounds = bounds[:maxUsed]
	}
	for i := range bounds {
		bounds[i].Cost = 0 // so that no bound is left unread because another one would deny
	}
	d.Resolution.Bounds = bounds
	return more
}

// endpointOf returns the endpoint in the query of a target, or "" without one, and what is wrong with it.
func endpointOf(target string) (endpoint, problem string) {
	_, query, _ := strings.Cut(target, "?")
	if query == "" {
		return "", ""
	}
	values, err := url.ParseQuery(query)
	if err != nil {
		return "", "The query of this request is not percent-encoded correctly."
	}
	endpoint = strings.Clone(values.Get(endpointParam))
	if method, path, _ := Target(endpoint); strings.Contains(endpoint, " ") && (method == "" || path == "") ||
		len(endpoint) > maxEndpoint {
		return "", "endpoint must be METHOD /path, such as POST /records, a path alone, or the name of a route, in at " +
			"most 1024 bytes."
	}
	return endpoint, ""
}

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
