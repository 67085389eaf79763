package policysync

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
)

// DenialSink stores recent denials in Postgres and offers denials to webhooks, over a connection of its own. Postgres
// keeps those that a webhook wants.
type DenialSink struct{ reportSession }

// NewDenialSink returns a sink that has not connected yet.
func NewDenialSink(source Source) *DenialSink { return &DenialSink{reportSession{source: source}} }

// DenialEvent is an event about denials.
type DenialEvent struct {
	ID     string          `json:"event"` // unique within the node
	Time   time.Time       `json:"at"`
	Tenant string          `json:"tenant"` // UTF-8 without NUL
	Data   json.RawMessage `json:"data"`
}

// NotWanted is what Report returns where no webhook wants denials.
const NotWanted = -1

// Report offers denials. It returns how many were added, and the IDs of those that were dropped because too many of
// their tenant wait. One that waits already stays as it is.
func (d *DenialSink) Report(
	ctx context.Context, node string, all []DenialEvent,
) (kept int, dropped []string, err error) {
	err = d.report(ctx, `SELECT kept, dropped FROM rate_limiter.report_denials($1, $2)`, node, all, &kept, &dropped)
	return kept, dropped, err
}

// report runs a statement that takes rows as JSON. Its error has the advice in its text.
func (d *DenialSink) report(ctx context.Context, sql, node string, rows any, into ...any) error {
	err := d.run(ctx, "report denials", func(conn *pgx.Conn) error {
		text, err := json.Marshal(rows)
		if err != nil {
			return err
		}
		return conn.QueryRow(ctx, sql, node, string(text)).Scan(into...)
	})
	if advised := new(usageError); errors.As(err, &advised) && advised.Advice() != "" {
		return fmt.Errorf("%w: %s", err, advised.Advice())
	}
	return err
}

// RecentDenial counts denials of a tenant by one policy at about one time. Its texts are UTF-8 without NUL.
type RecentDenial struct {
	ID            string `json:"event"` // unique within the node
	Age           int64  `json:"age"`   // µs since the last denial
	Tenant        string `json:"tenant"`
	Endpoint      string `json:"endpoint"`
	Policy        string `json:"policy"`
	Scope         string `json:"scope"`
	Limit         *int64 `json:"limit"` // nil: no policy denied
	WindowSeconds *int64 `json:"window_size"`
	Reason        string `json:"reason"`
	Shadow        bool   `json:"shadow"`
	Count         uint64 `json:"count"`
	TenantCount   uint64 `json:"tenant_count"` // of Count: those that the tenant may read
	User          string `json:"user"`
	IP            string `json:"ip"`
	RetryAfter    *int64 `json:"retry_after"` // seconds; nil: unknown

	decision.Denier
	RequestIDs []string `json:"request_ids,omitempty"` // of the first requests: ASCII, at most 32 of at most 64 bytes
	HiddenIDs  []string `json:"hidden_ids,omitempty"`  // of RequestIDs, those that the tenant may not read
}

// ReportRecent adds recent denials, and returns how many. Those of a tenant with too many are left out, and one that
// was added before stays as it is.
func (d *DenialSink) ReportRecent(ctx context.Context, node string, all []RecentDenial) (added int, err error) {
	err = d.report(ctx, `SELECT rate_limiter.report_recent_denials($1, $2)`, node, all, &added)
	return added, err
}

// IsStorable reports whether a later try can store what a report has not: its error is neither about the values of the
// report, nor about a bound.
func IsStorable(err error) bool {
	answered := new(pgconn.PgError)
	return !errors.As(err, &answered) || !strings.HasPrefix(answered.Code, "22") && answered.Code != "53400"
}
