package policysync

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// DenialSink offers denials to webhooks, through Postgres, over a connection of its own. Postgres keeps those that a
// webhook wants.
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

const reportDenialsSQL = `SELECT kept, dropped FROM rate_limiter.report_denials($1, $2)`

// NotWanted is what Report returns where no webhook wants denials.
const NotWanted = -1

// Report offers denials. It returns how many were added, and the IDs of those that were dropped because too many of
// their tenant wait. One that waits already stays as it is.
func (d *DenialSink) Report(
	ctx context.Context, node string, all []DenialEvent,
) (kept int, dropped []string, err error) {
	text, err := json.Marshal(all)
	if err != nil {
		return 0, nil, fmt.Errorf("report denials: %w", err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err = d.connect(ctx); err == nil {
		err = d.conn.QueryRow(ctx, reportDenialsSQL, node, string(text)).Scan(&kept, &dropped)
	}
	if err == nil {
		return kept, dropped, nil
	}
	advice := d.advice(ctx, err)
	if answered := new(pgconn.PgError); !errors.As(err, &answered) {
		d.disconnect()
	}
	if advice != "" {
		return 0, nil, fmt.Errorf("report denials: %w: %s", err, advice)
	}
	return 0, nil, fmt.Errorf("report denials: %w", err)
}
