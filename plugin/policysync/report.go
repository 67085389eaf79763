package policysync

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
)

// reportTime bounds a report, and farewell taking the last one back.
const reportTime, farewell = 5 * time.Second, time.Second

// reportSQL takes a duration instead of an instant, so that all instants are the server's.
const reportSQL = `INSERT INTO rate_limiter.nodes AS n (node, version, enforced_at, reported_at, source, faults)
	SELECT $1, $2, at - $3::interval, at, $4, $5 FROM clock_timestamp() at
	ON CONFLICT (node) DO UPDATE SET version = excluded.version, reported_at = excluded.reported_at,
		source = excluded.source, faults = excluded.faults,
		enforced_at = CASE WHEN n.version = excluded.version AND n.source = excluded.source THEN n.enforced_at ELSE excluded.enforced_at END`

// report tells Postgres what is in force here. Its error is that contact is lost: a report that is refused is logged,
// once, and does no harm.
func (s *Sync) report(ctx context.Context, conn *pgx.Conn) error {
	if s.mute() {
		return nil
	}
	if s.options.Away != nil && s.options.Away() {
		if !s.left {
			s.leave(ctx, conn)
		}
		return nil
	}
	s.left = false
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
		s.unreported = false
	case conn.IsClosed():
		return fmt.Errorf("report: %w", err)
	case !s.unreported:
		s.unreported = true
		s.log.Warn("Postgres denied the report of this node: ratelimit fleet does not show what it enforces", "error", err, "advice", s.advice(err))
	}
	return nil
}

// leaveSQL takes a report back.
const leaveSQL = `DELETE FROM rate_limiter.nodes WHERE node = $1`

// leave takes this node's report back, when it ends or answers no requests any more: a report that stays makes it a
// silent node, which may still admit requests for all that others know. s.left is whether that was done.
func (s *Sync) leave(ctx context.Context, conn *pgx.Conn) {
	if s.mute() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), farewell)
	defer cancel()
	_, err := conn.Exec(ctx, leaveSQL, s.options.Node)
	s.left = err == nil
	if err != nil {
		s.log.Warn("removing the report of this node failed: it is listed as silent", "error", err)
	}
}
