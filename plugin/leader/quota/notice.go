package quota

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
)

// Thresholds lists the percentages of a quota at which there is a notice.
var Thresholds = [...]int64{50, 80, 100}

const leastWindow = 3600 * limit.Second

// Notice reports that a tenant has used a percentage of a quota. It is the data of an event, see
// schema/quota_threshold.schema.json.
type Notice struct {
	Version     int        `json:"version"` // of this format: 1
	Tenant      string     `json:"org"`
	Policy      string     `json:"policy"`
	PolicyID    int64      `json:"policy_id,omitempty"`
	Tier        string     `json:"tier,omitempty"` // whose list in the config has the policy
	Endpoint    string     `json:"endpoint,omitempty"`
	Threshold   int64      `json:"threshold"`      // percent
	Limit       int64      `json:"limit"`          // tokens
	Used        int64      `json:"used"`           // tokens
	Unit        string     `json:"unit,omitempty"` // of both, if not tokens
	WindowStart time.Time  `json:"window_start"`
	WindowEnd   time.Time  `json:"window_end"`
	Period      string     `json:"period,omitempty"` // of a limit by the calendar
	TimeZone    string     `json:"time_zone,omitempty"`
	ExhaustedAt *time.Time `json:"exhausted_at,omitempty"`
	Late        bool       `json:"late,omitempty"`

	namespace string // of a policy in a config
}

// ref returns the text that identifies the policy.
func (n *Notice) ref() string {
	return policy.Ref{Name: n.Policy, Row: n.PolicyID, Namespace: n.namespace, Tier: n.Tier}.String()
}

// ID returns the id of the event of the notice: a hash of what makes it unique.
func (n *Notice) ID() string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %q %q %d %d %d", n.Tenant, n.ref(), n.Endpoint, n.WindowStart.Unix(),
		n.WindowEnd.Unix(), n.Threshold))
	return hex.EncodeToString(sum[:16])
}

// isQuota reports whether there are notices of a bound: it can deny, it counts per tenant, not requests at once, and
// its window is long enough. A bucket with a burst below the quantity limits the rate of requests, and is empty all the
// time.
func isQuota(b *policy.Bound) bool {
	spec := b.Policy.Limit.Spec()
	return b.Enforced() && !b.Policy.Limit.IsConcurrency() && spec.Window >= leastWindow && spec.Burst >= spec.Quantity &&
		(b.Policy.Scope == policy.Tenant || b.Policy.Scope == policy.TenantEndpoint)
}

// reached returns the highest threshold that the usage of a bucket has reached, or 0. All of a quota is used where what
// is left is too little for a request. That is not so where requests settle: what they reserve may come back.
func reached(b *policy.Bound, s *decision.Status) (threshold int64) {
	size := b.Policy.Limit.Spec().Burst
	if b.Policy.Settle == nil && !s.Admits() && s.Wait != limit.Never {
		return Thresholds[len(Thresholds)-1]
	}
	for _, t := range Thresholds {
		if float64(s.Used)*100 >= float64(size)*float64(t) {
			threshold = t
		}
	}
	return threshold
}

// newNotice returns the notice of a threshold that a bucket has reached. Windows without a calendar are aligned to the
// Unix epoch, also for algorithms without fixed windows: there a notice may be repeated in the next one.
func newNotice(b *policy.Bound, s *decision.Status, threshold int64) Notice {
	spec, ref := b.Policy.Limit.Spec(), b.Ref()
	start, end := b.Policy.Limit.PeriodAt(s.Now)
	n := Notice{
		Version: 1, Tenant: b.Key.GroupID, Policy: ref.Name, PolicyID: ref.Row, Tier: ref.Tier, namespace: ref.Namespace,
		Endpoint: b.Key.Endpoint, Threshold: threshold, Limit: spec.Burst, Used: s.Used, Unit: b.Policy.Unit,
		WindowStart: timeOf(start), WindowEnd: timeOf(end),
	}
	if spec.Calendar != nil {
		n.Period, n.TimeZone = spec.Calendar.Period().String(), spec.Calendar.Zone()
	}
	return n
}

// rateSpan returns the time before now over which the rate of a quota is measured: a 24th of its window, at least 5
// minutes and at most a day.
func rateSpan(window limit.Micros) time.Duration {
	const parts, least, most = 24, 5 * time.Minute, 24 * time.Hour
	return min(max(time.Duration(window)*time.Microsecond/parts, least), most)
}

func timeOf(at limit.Micros) time.Time { return time.UnixMicro(int64(at)).UTC() }

// limits holds the limits of a tenant by what usage is counted by.
type limits struct{ resolve.BoundsByUse }

// limitsOf returns the limits of a tenant's requests, to the endpoints that they distinguish and to routes.
func (c *check) limitsOf(tenant string, routes []string) limits {
	id := identity.Identity{Tenant: identity.Name{Kind: identity.Tenant, ID: tenant}}
	return limits{c.plan.BoundsByUse(c.options.Tiers.Identities(id), routes, limit.Micros(c.now.UnixMicro()))}
}

// quota returns the quota in which the usage of a policy at an endpoint counts, if it is one. A pattern that no policy
// has any more has the limit of requests without an endpoint.
func (l limits) quota(ref policy.Ref, endpoint string) (policy.Bound, bool) {
	b, ok := l.Find(ref, endpoint)
	return b, ok && isQuota(&b)
}

// routesOf returns the endpoints that are names of routes: only a pattern has a path.
func routesOf(uses []use) (routes []string) {
	seen := map[string]bool{}
	for i := range uses {
		if name := uses[i].Endpoint; name != "" && !strings.Contains(name, "/") && !seen[name] {
			seen[name] = true
			routes = append(routes, name)
		}
	}
	return routes
}

const (
	// lockState locks the state of usage, as each transaction of the leader does.
	lockState = `SELECT changed_since, checked_at, clock_timestamp() FROM rate_limiter.usage_state FOR UPDATE`

	// selectUses lists what was in use since a minute, and when last, ordered by tenant.
	selectUses = `SELECT t.name, p.name, e.name, u.at
		FROM (
			SELECT tenant, policy, endpoint, max(at) AS at FROM rate_limiter.usage_minutes
			WHERE at >= $1 GROUP BY tenant, policy, endpoint
		) u
		JOIN rate_limiter.usage_names t ON t.id = u.tenant JOIN rate_limiter.usage_names p ON p.id = u.policy
		JOIN rate_limiter.usage_names e ON e.id = u.endpoint
		WHERE t.name <> '' AND p.name <> '' ORDER BY t.name COLLATE "C"`

	// selectNew returns which of some notices are new, by their places from 0.
	selectNew = `SELECT place::bigint - 1
		FROM unnest($1::text[], $2::text[], $3::text[], $4::timestamptz[], $5::timestamptz[], $6::smallint[])
			WITH ORDINALITY n (tenant, policy, endpoint, window_start, window_end, threshold, place)
		WHERE NOT EXISTS (
			SELECT FROM rate_limiter.quota_notices o
			WHERE o.tenant = n.tenant AND o.policy = n.policy AND o.endpoint = n.endpoint
				AND o.window_start = n.window_start AND o.window_end = n.window_end AND o.threshold >= n.threshold)
		ORDER BY place`

	// selectCosts returns what a policy charged a tenant since a minute, by endpoint.
	selectCosts = `SELECT e.name AS endpoint, sum(u.cost)::bigint AS cost
		FROM rate_limiter.usage_minutes u JOIN rate_limiter.usage_names e ON e.id = u.endpoint
		WHERE u.tenant = (SELECT id FROM rate_limiter.usage_names WHERE name = $1)
			AND u.policy = (SELECT id FROM rate_limiter.usage_names WHERE name = $2) AND u.at >= $3
		GROUP BY e.name`

	// deleteReplaced deletes the notices of a window of another length that began at the same time.
	deleteReplaced = `DELETE FROM rate_limiter.quota_notices
		WHERE tenant = $1 AND policy = $2 AND endpoint = $3 AND window_start = $4 AND window_end <> $5`

	insertNotice = `INSERT INTO rate_limiter.quota_notices (tenant, policy, endpoint, window_start, threshold, window_end,
			"limit", used, exhausted_at, late, noticed_at, unit)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)`

	setChecked = `UPDATE rate_limiter.usage_state SET changed_since = NULL, checked_at = $1`

	// deleteOld deletes a batch of notices 60 days after the ends of their windows.
	deleteOld = `DELETE FROM rate_limiter.quota_notices WHERE ctid IN (
		SELECT ctid FROM rate_limiter.quota_notices WHERE window_end < clock_timestamp() - interval '60 days'
		ORDER BY window_end LIMIT 1000)`
)
