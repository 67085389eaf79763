package rows

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5"
)

// LiveWithin is the largest age of the last report of a live node, unless a call gives another one. A node reports
// every 5 s, so it may miss two reports. A node with an older report is silent: it may have ended, or it may admit
// requests by old policies.
const LiveWithin = 15 * time.Second

// forgetAction is the operation of ForgetNode in the audit.
const forgetAction = "forget"

// ForgetNode drops the report of a silent node, records that in the audit, and returns the report. It returns a
// NotFoundError for a node without a report, and a ConflictError for a live node. It makes no version. A node that
// reports again is listed again.
func (s *DB) ForgetNode(ctx context.Context, c Change, node string) (Node, error) {
	what := fmt.Sprintf("node %q", node)
	forgotten, _, err := write(ctx, s, "forget node "+node, c, func(tx pgx.Tx) (Node, error) {
		found, err := one[Node](ctx, tx, what, `DELETE FROM rate_limiter.nodes
			WHERE node = $2 AND reported_at < clock_timestamp() - $1::interval RETURNING `+nodeColumns, LiveWithin, node)
		if IsMissing(err) {
			err = notSilent(ctx, tx, what, node)
		}
		if err != nil {
			return Node{}, err
		}
		details, err := json.Marshal(found)
		if err == nil {
			_, err = tx.Exec(ctx, `SELECT rate_limiter.record_action($1, $2, '', $3)`, forgetAction, node, details)
		}
		return found, err
	})
	return forgotten, err
}

// notSilent returns why a node that is not silent cannot be forgotten.
func notSilent(ctx context.Context, tx pgx.Tx, what, node string) error {
	_, err := one[Node](ctx, tx, what, `SELECT `+nodeColumns+` FROM rate_limiter.nodes WHERE node = $2`, LiveWithin, node)
	if err != nil {
		return err
	}
	return &ConflictError{
		What:    what,
		Problem: "it is live, and would be listed again with its next report: end its process instead",
	}
}

// nodeColumns lists the columns of a Node, where $1 is the largest age of the last report of a live one. JSON holds all
// instants that the constraint nodes_instants admits.
const nodeColumns = `node, version, enforced_at, first_reported_at, reported_at,
	reported_at >= clock_timestamp() - $1::interval AS live, source, faults, coalesce(leases, 0) AS leases, redis,
	coalesce(zone_data, '') AS zone_data, coalesce(took, '{}') AS took`

// Node describes a node by its last report.
type Node struct {
	Node       string          `json:"node"`
	Version    int64           `json:"version"`
	EnforcedAt time.Time       `json:"enforced_at"`                              // since when, by the database's clock
	FirstAt    time.Time       `json:"first_reported_at" db:"first_reported_at"` // by the database's clock
	ReportedAt time.Time       `json:"reported_at"`                              // by the database's clock
	Live       bool            `json:"live"`                                     // it has reported lately
	Source     string          `json:"source"`
	Faults     json.RawMessage `json:"faults"`

	Leases   int64       `json:"leases"              doc:"Buckets of which it holds tokens."`
	Redis    []NodeRedis `json:"redis,omitempty"     doc:"Each Redis that the node uses, those that do not answer first."`
	ZoneData string      `json:"zone_data,omitempty" doc:"The version of the time zones by which it counts periods." example:"2025c"`

	Took []int64 `json:"decision_times,omitempty" doc:"Decisions of about the last minute by duration: item i, from 0, counts those of less than 2^i µs, and at least half as long."`
}

// NodeRedis describes a Redis that a node uses.
type NodeRedis struct {
	Name      string     `json:"name"                 doc:"Where it is, without secrets."`
	AwaySince *time.Time `json:"away_since,omitempty" doc:"Since when it has not answered. Absent: it answers."`
}

// UnmarshalJSON reads a Redis from the report of a node. A report whose text is malformed must not hide those of other
// nodes, so a value of another shape, or an instant that JSON cannot hold, is left out instead of being an error.
func (r *NodeRedis) UnmarshalJSON(text []byte) error {
	*r = NodeRedis{}
	var fields map[string]any
	if json.Unmarshal(text, &fields) != nil {
		return nil
	}
	r.Name, _ = fields["name"].(string)
	since, _ := fields["away_since"].(string)
	if at, err := time.Parse(time.RFC3339, since); err == nil && at.UTC().Year() < 9999 {
		r.AwaySince = &at
	}
	return nil
}

// Away returns each Redis that did not answer the node when it last reported.
func (n *Node) Away() (away []NodeRedis) {
	for _, r := range n.Redis {
		if r.AwaySince != nil {
			away = append(away, r)
		}
	}
	return away
}

// Fleet holds the current version, and the version that each node enforces.
type Fleet struct {
	Version int64     `json:"version"` // of the last change; 0: there was none
	At      time.Time `json:"at"`      // when that change was written; it was committed a moment later
	Nodes   []Node    `json:"nodes"`   // by name
}

// fleetSQL reads the newest 2,000 reports, as many as the trigger nodes_bound keeps: several transactions together may
// insert more. After 4 MB of their details, the newest first, it leaves out those of the other nodes.
const fleetSQL = `SELECT ` + nodeColumns + ` FROM (
		SELECT node, version, enforced_at, first_reported_at, reported_at, source, leases, zone_data, took,
			CASE WHEN bytes <= 4194304 THEN redis END AS redis,
			CASE WHEN bytes <= 4194304 THEN faults ELSE jsonb_build_array(jsonb_build_object('table', 'nodes', 'key', node,
				'field', 'faults', 'problem', 'left out, as its Redis: newer reports have 4 MB of details')) END AS faults
		FROM (
			SELECT *, sum(octet_length(faults::text) + coalesce(octet_length(redis::text), 0))
				OVER (ORDER BY reported_at DESC, node) AS bytes
			FROM (SELECT * FROM rate_limiter.nodes ORDER BY reported_at DESC, node LIMIT 2000) newest
		) measured
	) bounded ORDER BY node COLLATE "C"`

// Fleet returns the reports of the nodes, at most 2,000. A node is live if its last report is not older than within.
func (s *DB) Fleet(ctx context.Context, within time.Duration) (Fleet, error) {
	var f Fleet
	err := s.pool.QueryRow(ctx, `SELECT version, at FROM rate_limiter.version`).Scan(&f.Version, &f.At)
	if err == nil {
		f.Nodes, err = collect[Node](ctx, s.pool, fleetSQL, within)
	}
	return f, fail("read the fleet", err)
}

// DecisionP99 returns the duration that 99 % of the decisions of live nodes did not exceed in about the last minute, or
// 0 without any.
func (f Fleet) DecisionP99() time.Duration {
	var counts [32]float64
	var all float64
	for _, n := range f.Nodes {
		for i, count := range n.Took[:min(len(n.Took), len(counts))] {
			if n.Live {
				counts[i] += float64(count)
				all += float64(count)
			}
		}
	}
	rank := all * 0.99
	for i, count := range counts {
		if count > 0 && rank <= count {
			end := float64(uint64(1) << i)
			return time.Duration((end/2 + end/2*rank/count) * float64(time.Microsecond))
		}
		rank -= count
	}
	return 0
}

// Spread returns the time from the last change until all live nodes enforced it. It ignores nodes that first reported
// after the change, because they began with it. It reports false while a live node is behind, and if no live node had
// reported before the change.
func (f Fleet) Spread() (time.Duration, bool) {
	var last time.Time
	for _, n := range f.Nodes {
		if n.Live && n.FirstAt.Before(f.At) && n.EnforcedAt.After(last) {
			last = n.EnforcedAt
		}
	}
	if last.IsZero() || len(f.Reach(f.Version).Behind) > 0 {
		return 0, false
	}
	return max(0, last.Sub(f.At)), true
}

const (
	// awaitPoll is the time between two reads of the versions by all calls of Await.
	awaitPoll = 50 * time.Millisecond
	// awaitTime bounds such a read.
	awaitTime = 5 * time.Second
)

// oldest returns the oldest version that a live node enforces. Without a live node it is the largest number. Concurrent
// calls share one read, which is made awaitPoll after the first of them.
func (s *DB) oldest(ctx context.Context, within time.Duration) (int64, error) {
	read := s.reads.DoChan(within.String(), func() (any, error) {
		time.Sleep(awaitPoll)
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), awaitTime)
		defer cancel()
		var oldest int64
		err := s.pool.QueryRow(ctx, `SELECT coalesce(min(version), $2) FROM rate_limiter.nodes
			WHERE reported_at >= clock_timestamp() - $1::interval`, within, int64(math.MaxInt64)).Scan(&oldest)
		return oldest, err
	})
	select {
	case r := <-read:
		return r.Val.(int64), r.Err
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// Await returns once no live node is behind a version. It does not wait for silent nodes. If ctx ends first, it returns
// the error of ctx.
func (s *DB) Await(ctx context.Context, version int64, within time.Duration) error {
	for {
		oldest, err := s.oldest(ctx, within)
		if err != nil || oldest >= version {
			return fail("await the nodes", err)
		}
	}
}

// NodeVersion holds a node and the version that it last reported.
type NodeVersion struct {
	Node    string `json:"node"    doc:"The node as the fleet names it."`
	Version int64  `json:"version" doc:"The version that it last reported; 0: none from Postgres."`
}

// String returns both in words.
func (n NodeVersion) String() string { return fmt.Sprintf("%s (version %d)", n.Node, n.Version) }

// Reach reports which nodes enforce a version. The CLI and the REST API show it in this shape.
type Reach struct {
	Enforced bool          `json:"enforced"   doc:"At least one node is live, all live nodes enforce the version, and no node is silent."`
	Live     int           `json:"live_nodes" doc:"Nodes that have reported within 15 s."`
	Behind   []NodeVersion `json:"behind"     doc:"The live nodes that do not enforce it yet."`
	Silent   []NodeVersion `json:"silent"     doc:"The nodes that have neither left nor reported within 15 s. They may still admit requests by older policies, and no write waits for them. One whose process has ended can be forgotten."`
}

// Reach reports which nodes enforce a version.
func (f Fleet) Reach(version int64) Reach {
	r := Reach{Behind: []NodeVersion{}, Silent: []NodeVersion{}}
	for _, n := range f.Nodes {
		if !n.Live {
			r.Silent = append(r.Silent, NodeVersion{n.Node, n.Version})
			continue
		}
		r.Live++
		if n.Version < version {
			r.Behind = append(r.Behind, NodeVersion{n.Node, n.Version})
		}
	}
	r.Enforced = r.Live > 0 && len(r.Behind)+len(r.Silent) == 0
	return r
}
