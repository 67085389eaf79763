package rows

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// RecentDenial counts denials of one tenant by one policy at about one time, as nodes report them.
type RecentDenial struct {
	ID         int64     `json:"id"`
	At         time.Time `json:"at"` // of the last one
	Tenant     string    `json:"tenant,omitempty"`
	Endpoint   string    `json:"endpoint,omitempty"`
	Policy     string    `json:"policy,omitempty"`
	Scope      string    `json:"scope,omitempty"`
	Limit      *int64    `json:"limit,omitempty"`
	WindowSize *int64    `json:"window_size,omitempty"` // seconds; nil beside Limit: it counts requests at once
	Reason     string    `json:"reason"`
	Shadow     bool      `json:"shadow"` // the requests were admitted
	Count      int64     `json:"count"`
	User       string    `json:"user,omitempty"` // of all; a hash, unless the nodes show users
	IP         string    `json:"ip,omitempty"`   // the same
	RetryAfter *int64    `json:"retry_after_seconds,omitempty"`

	decision.Denier // of one of the last denials, as RetryAfter
}

// DenialFilter selects recent denials. Every field that is set must match; the zero value selects all.
type DenialFilter struct {
	Tenant, Policy, Endpoint string
	RequestID                string // that the gateway gave to a request

	Since  time.Time
	Before DenialCursor // only older ones: the last one of the page before

	AfterID int64 // only those that were reported later

	AsTenant bool // only those that Tenant may read, of their counts and requests the same
	Max      int  // at most so many; 0: all
}

// DenialCursor is the place of a denial in the order of Denials. The zero value is before the first one.
type DenialCursor struct {
	At time.Time
	ID int64
}

// denialColumns are those of a RecentDenial, without its count.
const denialColumns = `id, at, tenant, endpoint, policy, scope, "limit", window_size, reason, shadow, "user", ip,
	retry_after, coalesce(tier, '') AS tier, coalesce(policy_for, '') AS policy_for, policy_id, policy_version, capacity,
	cost, remaining, coalesce(unit, '') AS unit, override, penalty`

// where returns the condition of a filter, and the column that counts denials.
func (f *DenialFilter) where() (w where, count string) {
	count = "count"
	if f.AsTenant {
		count = "tenant_count"
		w.add("tenant = %s AND tenant_count > 0", f.Tenant)
	} else {
		w.equal("tenant", f.Tenant)
	}
	if f.RequestID != "" {
		w.add("request_ids @> ARRAY[%s]", f.RequestID)
		if f.AsTenant {
			w.add("(hidden_ids @> ARRAY[%s]) IS NOT TRUE", f.RequestID)
		}
	}
	w.equal("policy", f.Policy)
	w.equal("endpoint", f.Endpoint)
	given(&w, "at >= %s", f.Since)
	given(&w, "id > %s", f.AfterID)
	if f.Before != (DenialCursor{}) {
		w.args = append(w.args, f.Before.At)
		w.add(fmt.Sprintf("(at, id) < ($%d, %%s)", len(w.args)), f.Before.ID)
	}
	return w, count
}

// Denials returns the recent denials that a filter selects, newest first. They are kept for 7 days, as far as the
// bounds of a tenant and of all allow.
func (s *DB) Denials(ctx context.Context, f DenialFilter) ([]RecentDenial, error) {
	w, count := f.where()
	return readAll[RecentDenial](ctx, s.pool, "list denials", `
		SELECT `+count+` AS count, `+denialColumns+`
		FROM rate_limiter.recent_denials`+w.String()+` ORDER BY at DESC, id DESC`+limitTo(f.Max), w.plannedArgs()...)
}

// DenialGroup has the denials of one tenant by one limit, for one reason, at one endpoint.
type DenialGroup struct {
	RecentDenial // the last one, with the count of all

	Trend map[int]int64 // counts by step since the begin of the filter, from 0; steps without any are absent
}

// DenialGroups returns groups of recent denials since an instant, the largest first.
func (s *DB) DenialGroups(ctx context.Context, f DenialFilter, step time.Duration) ([]DenialGroup, error) {
	w, count := f.where()
	args := w.plannedArgs()
	at := len(args)
	const of = `tenant, endpoint, policy, scope, reason, shadow`
	return readAll[DenialGroup](ctx, s.pool, "group denials", fmt.Sprintf(`
		WITH steps AS (
			SELECT %[1]s, (array_agg(id ORDER BY at DESC, id DESC))[1] AS last, sum(%[2]s)::bigint AS count,
				floor(extract(epoch FROM at - $%[4]d::timestamptz) / $%[5]d::float8)::bigint AS step
			FROM rate_limiter.recent_denials%[3]s GROUP BY %[1]s, step),
		largest AS (
			SELECT (array_agg(last ORDER BY step DESC))[1] AS last, sum(count)::bigint AS count,
				jsonb_object_agg(step, count) AS trend
			FROM steps GROUP BY %[1]s ORDER BY 2 DESC, 1 DESC%[6]s)
		SELECT g.count, g.trend, d.* FROM largest g, LATERAL (
			SELECT `+denialColumns+` FROM rate_limiter.recent_denials WHERE id = g.last) d
		ORDER BY g.count DESC, d.id DESC`, of, count, w.String(), at, at+1, limitTo(f.Max)),
		append(args, f.Since, step.Seconds())...)
}

// DenialsOf returns the denials of one request, newest first: one for each limit that denied it. It returns a
// NotFoundError if none is stored.
func (s *DB) DenialsOf(ctx context.Context, f DenialFilter) ([]RecentDenial, error) {
	list, err := s.Denials(ctx, f)
	if err == nil && len(list) == 0 {
		err = &NotFoundError{"a recent denial of request " + f.RequestID, "nodes report a sample of what they deny within " +
			"10 seconds, at most 32 ids of an item, unless a config sets denial_request_id: false; it is kept for at most " +
			"7 days. X-Kong-Request-Id of the response has the id. The denial record of the nodes may have it too"}
	}
	return list, err
}

// DropDenials drops recent denials beyond their bounds, the oldest first, in a session, which may hold TidyLock. It
// drops at most TidyBatch and reports whether more may be due.
func DropDenials(ctx context.Context, session *pgx.Conn) (more bool, err error) {
	var dropped int
	err = session.QueryRow(ctx, `SELECT rate_limiter.drop_recent_denials($1)`, TidyBatch).Scan(&dropped)
	return dropped >= TidyBatch, fail("drop recent denials", err)
}

// WouldAdmit returns what would have admitted a request that d denied, as far as its fields tell; "" if they tell
// nothing. Where several limits deny a request, all must admit it.
func (d *RecentDenial) WouldAdmit() string {
	switch {
	case d.Shadow:
		return "Nothing is needed: the request was admitted. It will be denied when the limit is enforced."
	case d.Reason == "quota" || d.Reason == "fair_share":
		return sentence(d.limitWouldAdmit())
	case d.Reason == "banned" && d.RetryAfter != nil:
		return sentence([]string{d.retry(), "an earlier end of the ban" + d.overrideText()})
	case d.Reason == "banned":
		return sentence([]string{"the end of the ban" + d.overrideText() + ", since waiting does not help"})
	}
	return waysAdmit[d.Reason]
}

// waysAdmit is what would admit a request that no limit denied, by reason.
var waysAdmit = map[string]string{
	"tenant_missing":  "A request that names its tenant where the config's tenant_from reads it.",
	"user_missing":    "A request that names its user where the config's user_from reads it.",
	"header_repeated": "A request that sends each header with the name of its tenant or user once.",
	"model_unpriced":  "A price of the model, in the config's llm.prices or by ratelimit price put, or another model.",
	"meta_limited":    "A retry after Retry-After, with fewer requests of the tenant at once: meta_limit protects the node.",
	"store_away":      "A retry after Retry-After, when the limit can be checked again; or fail_mode open or local.",
}

// limitWouldAdmit returns each of the ways by which the limit would have admitted the request.
func (d *RecentDenial) limitWouldAdmit() (ways []string) {
	switch {
	case d.RetryAfter != nil:
		ways = append(ways, d.retry()+" if nothing else is spent until then")
	case d.Limit == nil || d.Reason == "fair_share":
		ways = append(ways, "a retry after Retry-After")
	case d.Capacity != nil:
		ways = append(ways, fmt.Sprintf("a cost of at most %s, which is all that the limit holds: no wait helps",
			schema.Amount(*d.Capacity, d.Unit)))
	default:
		ways = append(ways, "a retry after Retry-After; without that header no wait helps")
	}
	if d.Remaining != nil && *d.Remaining > 0 && d.RetryAfter != nil {
		ways = append(ways, fmt.Sprintf("a cost of at most %s, which was left", schema.Amount(*d.Remaining, d.Unit)))
	}
	if d.Penalty != nil {
		ways = append(ways, fmt.Sprintf("the end of penalty %d, which lowers the limit", *d.Penalty))
	}
	switch {
	case d.Reason == "fair_share":
		return append(ways, "less demand of other tenants", "a larger weight of the tenant in the limit's shares")
	case d.PolicyID != nil:
		return append(ways, fmt.Sprintf("a larger limit, by policy %d or an override", *d.PolicyID))
	}
	return append(ways, "a larger limit, by the config or an override")
}

// RetryAt returns the first whole second at which a retry can be admitted, or nil: unknown, or no wait helps.
func (d *RecentDenial) RetryAt() *time.Time {
	if d.RetryAfter == nil {
		return nil
	}
	at := d.At.Add(time.Duration(*d.RetryAfter)*time.Second + time.Second - 1).Truncate(time.Second).UTC()
	return &at
}

// retry returns when a retry would have been admitted.
func (d *RecentDenial) retry() string { return "a retry at " + d.RetryAt().Format(time.RFC3339) }

// overrideText names the override, to go behind what it does.
func (d *RecentDenial) overrideText() string {
	if d.Override == nil {
		return ""
	}
	return fmt.Sprint(" by override ", *d.Override)
}

// sentence joins alternatives.
func sentence(ways []string) string {
	text := strings.Join(ways, "; or ")
	return strings.ToUpper(text[:1]) + text[1:] + "."
}
