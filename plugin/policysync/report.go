package policysync

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
)

// reportTime bounds a report, and removeReportTime its removal.
const reportTime, removeReportTime = 5 * time.Second, time.Second

// reportSQL takes a duration instead of an instant, so that all instants are the server's.
const reportSQL = `INSERT INTO rate_limiter.nodes AS n (node, version, enforced_at, reported_at, source, faults)
	SELECT $1, $2, at - $3::interval, at, $4, $5 FROM clock_timestamp() at
	ON CONFLICT (node) DO UPDATE SET version = excluded.version, reported_at = excluded.reported_at,
		source = excluded.source, faults = excluded.faults,
		enforced_at = CASE WHEN n.version = excluded.version AND n.source = excluded.source
			THEN n.enforced_at ELSE excluded.enforced_at END`

// report writes to Postgres what is in force here. It returns an error if contact is lost. A report that Postgres
// denies is logged once.
func (s *Sync) report(ctx context.Context, conn *pgx.Conn) error {
	if s.reportsNothing() {
		return nil
	}
	if s.options.Superseded != nil && s.options.Superseded() {
		if !s.reportRemoved {
			s.removeReport(ctx, conn)
		}
		return nil
	}
	s.reportRemoved = false
	now := s.Stats()
	faults := now.reported()
	if faults == nil {
		faults = []policy.Fault{}
	}
	text, err := json.Marshal(faults)
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	source := now.Source
	if source == FromNone {
		source = "config"
	}
	bounded, cancel := context.WithTimeout(ctx, reportTime)
	defer cancel()
	_, err = conn.Exec(bounded, reportSQL, s.options.Node, now.Version, now.Enforced, source, text)
	switch {
	case err == nil:
		s.reportFailed = false
	case conn.IsClosed():
		return fmt.Errorf("report: %w", err)
	case !s.reportFailed:
		s.reportFailed = true
		s.log.Warn("Postgres denied the report of this node: ratelimit fleet does not show what it enforces",
			"error", err, "advice", s.advice(err))
	}
	return nil
}

// leaveSQL removes a report.
const leaveSQL = `DELETE FROM rate_limiter.nodes WHERE node = $1`

// removeReport removes this node's report when it ends or stops answering requests, and sets reportRemoved. A report
// that stays makes it a silent node, and other nodes must assume that it still admits requests.
func (s *Sync) removeReport(ctx context.Context, conn *pgx.Conn) {
	if s.reportsNothing() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeReportTime)
	defer cancel()
	_, err := conn.Exec(ctx, leaveSQL, s.options.Node)
	s.reportRemoved = err == nil
	if err != nil {
		s.log.Warn("removing the report of this node failed: it is listed as silent", "error", err)
	}
}
