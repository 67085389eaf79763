package policysync

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/calendar"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

const reportTime, removeReportTime = 5 * time.Second, 3 * time.Second

// maxFaultBytes bounds the faults of a report. Postgres denies more than 64 KiB of them, with its white space.
const maxFaultBytes = 60_000

// Report holds what a node reports to Postgres of the rows that it enforces.
type Report struct {
	Node     string        // names one run of one process
	Version  int64         // the enforced version; 0: none from Postgres
	Enforced time.Duration // how long it has been enforced, by the node's monotonic clock
	Source   string        // of the version: postgres, disk or config
	Faults   []policy.Fault
	Condition
}

// Condition holds what a node reports of itself besides the rows that it enforces.
type Condition struct {
	Leases int     // buckets of which it holds tokens on lease
	Redis  []Redis // each Redis that it uses

	// Took counts the decisions of about the last minute by duration: element i has those of less than 2^i µs and at
	// least half as long, the last one also longer ones.
	Took []int64
}

// Redis describes one Redis that a node uses.
type Redis struct {
	Name        string  `json:"name"`                   // where it is, without secrets
	AwaySeconds float64 `json:"away_seconds,omitempty"` // how long it has not answered; 0: it answers
}

// Execer runs statements: a connection to Postgres, or a pool of them.
type Execer interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// reportSQL writes a report. It takes durations instead of instants, so that all instants are the server's.
const reportSQL = `INSERT INTO rate_limiter.nodes AS n
		(node, version, enforced_at, reported_at, source, faults, leases, redis, zone_data, took)
	SELECT $1, $2, at - $3::interval, at, $4, $5, $6::bigint,
		(SELECT coalesce(jsonb_agg(jsonb_strip_nulls(jsonb_build_object('name', r ->> 'name',
			'away_since', at - (r ->> 'away_seconds')::float8 * interval '1 second')) ORDER BY place), '[]')
		FROM jsonb_array_elements($7::jsonb) WITH ORDINALITY AS used (r, place)), $8, $9::bigint[]
	FROM clock_timestamp() at
	ON CONFLICT (node) DO UPDATE SET version = excluded.version, reported_at = excluded.reported_at,
		source = excluded.source, faults = excluded.faults, leases = excluded.leases, redis = excluded.redis,
		zone_data = excluded.zone_data, took = excluded.took,
		enforced_at = CASE WHEN n.version = excluded.version AND n.source = excluded.source
			THEN n.enforced_at ELSE excluded.enforced_at END`

// Write writes the report in place of the node's last one.
func (r Report) Write(ctx context.Context, to Execer) error {
	if r.Faults == nil {
		r.Faults = []policy.Fault{}
	}
	faults, err := json.Marshal(r.Faults)
	for err == nil && len(faults) > maxFaultBytes {
		r.Faults = r.Faults[:len(r.Faults)/2]
		faults, err = json.Marshal(r.Faults)
	}
	redis, redisErr := json.Marshal(r.reportedRedis())
	if err = errors.Join(err, redisErr); err == nil {
		_, err = to.Exec(ctx, reportSQL, r.Node, r.Version, r.Enforced, r.Source, faults, r.Leases, redis,
			calendar.DataVersion, r.Took)
	}
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	return nil
}

// reportedRedis returns each Redis once, those that do not answer first, and as many as fit into a report.
func (c Condition) reportedRedis() []Redis {
	list := slices.SortedFunc(slices.Values(c.Redis), func(a, b Redis) int {
		return cmp.Or(cmp.Compare(b.AwaySeconds, a.AwaySeconds), strings.Compare(a.Name, b.Name))
	})
	list = slices.CompactFunc(list, func(a, b Redis) bool { return a.Name == b.Name })
	return append([]Redis{}, list[:min(len(list), maxReported)]...)
}

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
	r := Report{Node: s.options.Node, Version: now.Version, Enforced: now.Enforced, Source: now.Source}
	r.Faults = slices.Clip(now.Faults[:min(len(now.Faults), maxReported)])
	switch r.Source {
	case FromNone:
		r.Source = "config"
	case FromRedis:
		r.Source = FromDisk // the table has one word for saved rows
	}
	if s.options.Condition != nil {
		r.Condition = s.options.Condition()
	}
	bounded, cancel := context.WithTimeout(ctx, reportTime)
	defer cancel()
	switch err := r.Write(bounded, conn); {
	case err == nil:
		s.reportFailed = false
	case conn.IsClosed():
		return err
	case !s.reportFailed:
		s.reportFailed = true
		s.log.Warn("Postgres denied the report of this node: ratelimit fleet does not show what it enforces",
			"error", err, "advice", adviceOn(bounded, conn, err))
	}
	return nil
}

// RemoveReport removes the report of a node that ends, and reports whether there was one.
func RemoveReport(ctx context.Context, from Execer, node string) (removed bool, err error) {
	done, err := from.Exec(ctx, `DELETE FROM rate_limiter.nodes WHERE node = $1`, node)
	if err != nil {
		return false, fmt.Errorf("remove the report of node %q: %w", node, err)
	}
	return done.RowsAffected() > 0, nil
}

// removeReport removes this node's report when it ends or stops answering requests, and sets reportRemoved. A report
// that stays makes it a silent node, and other nodes must assume that it still admits requests. Without a connection
// (nil) it makes one.
func (s *Sync) removeReport(ctx context.Context, conn *pgx.Conn) {
	if s.reportsNothing() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeReportTime)
	defer cancel()
	var err error
	if conn == nil {
		if conn, err = s.options.Source.connect(ctx, quick); err == nil {
			defer closeConn(conn)
		}
	}
	if err == nil {
		_, err = RemoveReport(ctx, conn, s.options.Node)
	}
	if s.reportRemoved = err == nil; err != nil {
		s.log.Warn("removing the report of this node failed: it is listed as silent", "error", err)
	}
}
