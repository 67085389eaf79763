package rows

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
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
	WindowSize *int64    `json:"window_size,omitempty"` // seconds
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

// Cursor returns the place of the denial.
func (d RecentDenial) Cursor() DenialCursor { return DenialCursor{d.At, d.ID} }

// Denials returns the recent denials that a filter selects, newest first. They are kept for 7 days, as far as the
// bounds of a tenant and of all allow.
func (s *DB) Denials(ctx context.Context, f DenialFilter) ([]RecentDenial, error) {
	var w where
	count := "count"
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
	list, err := collect[RecentDenial](ctx, s.pool, `SELECT id, at, tenant, endpoint, policy, scope, "limit", window_size,
			reason, shadow, `+count+` AS count, "user", ip, retry_after, coalesce(tier, '') AS tier,
			coalesce(policy_for, '') AS policy_for, policy_id, policy_version, capacity, cost, remaining, override, penalty
		FROM rate_limiter.recent_denials`+w.String()+` ORDER BY at DESC, id DESC`+limitTo(f.Max), w.plannedArgs()...)
	return list, fail("list denials", err)
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
