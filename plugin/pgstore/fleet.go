package pgstore

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// LiveWithin is how old a node's last report may be so that the node counts as live, unless another age is given
// time: a node reports every 5 s, so it may miss two reports. An older report makes the node silent: it may have ended,
// or it may admit requests by old policies.
const LiveWithin = 15 * time.Second

// Report is what a node says of itself.
type Report struct {
	Node    string          // one life of one process
	Version int64           // that it enforces; 0: none from Postgres
	Age     time.Duration   // for how long it has enforced that version, by its own monotonic clock
	Source  string          // where it has the version from: postgres, disk or config
	Faults  json.RawMessage // a list of what it cannot use; nil: nothing
}

// Report takes a node's report. Ages instead of instants make it independent of the node's clock.
func (s *Store) Report(ctx context.Context, r Report) error {
	if r.Faults == nil {
		r.Faults = json.RawMessage("[]")
	}
	_, err := s.pool.Exec(
		ctx,
		`INSERT INTO rate_limiter.nodes AS n (node, version, enforced_at, reported_at, source, faults)
		SELECT $1, $2, at - $3::interval, at, $4, $5 FROM clock_timestamp() at
		ON CONFLICT (node) DO UPDATE SET version = excluded.version, reported_at = excluded.reported_at,
			source = excluded.source,
			faults = excluded.faults,
			enforced_at = CASE WHEN n.version = excluded.version THEN n.enforced_at ELSE excluded.enforced_at END`,
		r.Node,
		r.Version,
		r.Age,
		r.Source,
		r.Faults,
	)
	return fail("report node "+r.Node, err)
}

// Leave drops the report of a node that ends. It is no error that it never reported.
func (s *Store) Leave(ctx context.Context, node string) error {
	_, err := s.pool.Exec(ctx, `DELETE FROM rate_limiter.nodes WHERE node = $1`, node)
	return fail("drop the report of node "+node, err)
}

// forgetAction is what the audit calls ForgetNode.
const forgetAction = "forget"

// ForgetNode drops the report of a silent node, tells so in the audit, and returns the report. Without a report it is a
// NotFoundError, and of a node that is live a ConflictError. It makes no version. A node that reports again is back.
func (s *Store) ForgetNode(ctx context.Context, c Change, node string) (Node, error) {
	what := fmt.Sprintf("node %q", node)
	gone, _, err := write(ctx, s, "forget node "+node, c, func(tx pgx.Tx) (Node, error) {
		found, err := one[Node](ctx, tx, what, `DELETE FROM rate_limiter.nodes
			WHERE node = $2 AND reported_at < clock_timestamp() - $1::interval RETURNING `+nodeColumns, LiveWithin, node)
		if isMissing(err) {
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
	return gone, err
}

// notSilent returns why a node cannot be forgotten that is not silent.
func notSilent(ctx context.Context, tx pgx.Tx, what, node string) error {
	_, err := one[Node](ctx, tx, what, `SELECT `+nodeColumns+` FROM rate_limiter.nodes WHERE node = $2`, LiveWithin, node)
	if err != nil {
		return err
	}
	return &ConflictError{
		What:    what,
		Problem: "it is live, and would be back with its next report: end its process instead",
	}
}

// nodeColumns are the columns of a Node, where $1 is how old the last report of a live one may be.
const nodeColumns = `node, version, enforced_at, first_reported_at, reported_at, reported_at >= clock_timestamp() - $1::interval AS live, source, faults`

// Node is one node as its last report has it.
type Node struct {
	Node       string          `json:"node"`
	Version    int64           `json:"version"`
	EnforcedAt time.Time       `json:"enforced_at"`                              // since when, by the database's clock
	FirstAt    time.Time       `json:"first_reported_at" db:"first_reported_at"` // by the database's clock
	ReportedAt time.Time       `json:"reported_at"`                              // by the database's clock
	Live       bool            `json:"live"`                                     // it has reported lately
	Source     string          `json:"source"`
	Faults     json.RawMessage `json:"faults"`
}

// Fleet is the current version and what the nodes enforce.
type Fleet struct {
	Version int64     `json:"version"` // of the last change; 0: there was none
	At      time.Time `json:"at"`      // when that change was written; it was committed a moment later
	Nodes   []Node    `json:"nodes"`   // by name
}

// Fleet tells what is known of all nodes. A node is live when its last report is not older than within.
func (s *Store) Fleet(ctx context.Context, within time.Duration) (Fleet, error) {
	var f Fleet
	err := s.pool.QueryRow(ctx, `SELECT version, at FROM rate_limiter.version`).Scan(&f.Version, &f.At)
	if err == nil {
		f.Nodes, err = collect[Node](
			ctx,
			s.pool,
			`SELECT `+nodeColumns+` FROM rate_limiter.nodes ORDER BY node COLLATE "C"`,
			within,
		)
	}
	return f, fail("read the fleet", err)
}

// Behind are the live nodes that do not enforce a version yet.
func (f Fleet) Behind(version int64) []Node {
	var behind []Node
	for _, n := range f.Nodes {
		if n.Live && n.Version < version {
			behind = append(behind, n)
		}
	}
	return behind
}

// Silent returns the nodes that have not left and whose last report is too old. What they enforce is unknown.
func (f Fleet) Silent() []Node {
	var silent []Node
	for _, n := range f.Nodes {
		if !n.Live {
			silent = append(silent, n)
		}
	}
	return silent
}

// Live returns how many nodes are live.
func (f Fleet) Live() int { return len(f.Nodes) - len(f.Silent()) }

// Enforces reports whether every node enforces a version: at least one is live, no live one is behind, and none is
// silent.
func (f Fleet) Enforces(version int64) bool {
	return f.Live() > 0 && len(f.Behind(version)) == 0 && len(f.Silent()) == 0
}

// Spread returns how long the last change took until the last live node enforced it that had reported before the
// change: one that started later began with it. It is false while a live node is behind, and when no live node had
// reported before.
func (f Fleet) Spread() (time.Duration, bool) {
	var last time.Time
	for _, n := range f.Nodes {
		if n.Live && n.FirstAt.Before(f.At) && n.EnforcedAt.After(last) {
			last = n.EnforcedAt
		}
	}
	if last.IsZero() || len(f.Behind(f.Version)) > 0 {
		return 0, false
	}
	return max(0, last.Sub(f.At)), true
}

const (
	// look is how long lies between two looks at the fleet of one who awaits it.
	look = 50 * time.Millisecond
	// glance is how old a look may be that several share.
	glance = look / 2
)

// looks are looks at the fleet that all share who await it: one query serves any number of them. The zero value is not
// usable.
type looks struct {
	turn  chan struct{} // holds one value; the holder may look, and use what is below
	last  Fleet
	at    time.Time // before last was read
	alive time.Duration
}

func newLooks() *looks {
	l := &looks{turn: make(chan struct{}, 1)}
	l.turn <- struct{}{}
	return l
}

// fleet is the fleet as it was a glance ago, or is now.
func (l *looks) fleet(ctx context.Context, s *Store, within time.Duration) (Fleet, error) {
	select {
	case <-l.turn:
		defer func() { l.turn <- struct{}{} }()
	case <-ctx.Done():
		return Fleet{}, fail("read the fleet", ctx.Err())
	}
	if l.alive == within && !l.at.IsZero() && time.Since(l.at) < glance {
		return l.last, nil
	}
	at := time.Now()
	fleet, err := s.Fleet(ctx, within)
	if err == nil {
		l.last, l.at, l.alive = fleet, at, within
	}
	return fleet, err
}

// Await returns the fleet once no live node is behind a version. It waits for no silent node, and without a live node
// without end: Enforces reports what that means. When ctx ends before, it returns the fleet as it was last seen, and
// the error of ctx. Any number may wait at once: they share their looks.
func (s *Store) Await(ctx context.Context, version int64, within time.Duration) (Fleet, error) {
	var last Fleet
	tick := time.NewTicker(look)
	defer tick.Stop()
	for {
		fleet, err := s.looks.fleet(ctx, s, within)
		if err != nil {
			return last, err
		}
		if last = fleet; len(fleet.Behind(version)) == 0 {
			return fleet, nil
		}
		select {
		case <-ctx.Done():
			return fleet, fail("await the nodes", ctx.Err())
		case <-tick.C:
		}
	}
}
