package abuse

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/leadership"
)

// Mode says what a Detector does.
type Mode string

// The modes.
const (
	Off     Mode = "off"     // nothing is scored, and the detector's overrides end
	Shadow  Mode = "shadow"  // tenants are scored, and steps have no effect
	Enforce Mode = "enforce" // steps become overrides
)

// Modes lists the modes.
var Modes = []Mode{Off, Shadow, Enforce}

const (
	// scoreAfter is the time between the end of a minute and its score. Most batches have come by then.
	scoreAfter = 20 * time.Second
	// catchUp bounds the minutes that a new leader scores.
	catchUp = 30 * time.Minute
	// penaltyTime is how long an override lasts that is not a ban. It is renewed in time while the tenant is on the step.
	penaltyTime, renewBefore = 55 * time.Minute, 10 * time.Minute
	// maxWrites bounds the overrides that one run writes: other writers wait for each. Later runs write the others.
	maxWrites = 200
	// maxTenants bounds the tenants that are scored in a minute, and those that are remembered. stateKept is for how long
	// they are, after their last minute.
	maxTenants, stateKept = 100_000, 7 * 24 * time.Hour
	// stepsKept is how long moves are kept.
	stepsKept = 30 * 24 * time.Hour
	// pardon is how long a tenant is off the ladder whose penalty an operator has ended.
	pardon = time.Hour
)

// Options configure a Detector.
type Options struct {
	Mode        Mode
	DeniedShare float64  // of the requests in Window, from which a tenant is flagged
	ExemptTiers []string // whose tenants are on no step
	// TierOf returns the tier of a tenant without a row, "" if it is unknown. A client must not be able to choose it.
	TierOf func(tenant string) string
	Log    *slog.Logger
}

// Detector scores tenants. Make it with New. One goroutine calls Run.
type Detector struct {
	options   Options
	fault     leadership.Fault
	maxScored int // tenants whose requests are read in a minute

	mu    sync.Mutex
	flags map[string]map[Signal]uint64 // minutes by org
	steps map[string]int64             // tenants
}

// New returns a detector. It does no I/O.
func New(o Options) *Detector {
	if o.TierOf == nil {
		o.TierOf = func(string) string { return "" }
	}
	return &Detector{options: o, maxScored: maxTenants, flags: map[string]map[Signal]uint64{}, fault: leadership.Fault{
		Log: o.Log, Level: slog.LevelError, Ends: "detecting abuse succeeds again",
		Begins: "detecting abuse failed: penalties in force expire within an hour",
	}}
}

// Run does the work that is due, in the session of the leader. An error of its own work is logged once, and does not
// keep the leader from its other work. It returns an error only if the session has ended.
func (d *Detector) Run(ctx context.Context, session *pgx.Conn) error {
	err := d.run(ctx, session)
	if err != nil && session.IsClosed() {
		return fmt.Errorf("detect abuse: %w", err)
	}
	d.fault.Record(err)
	return nil
}

func (d *Detector) run(ctx context.Context, session *pgx.Conn) error {
	if err := d.lift(ctx, session); err != nil || d.options.Mode == Off {
		return err
	}
	for more := true; more; {
		var err error
		if more, err = d.scoreNext(ctx, session); err != nil {
			return err
		}
	}
	var rejected error
	if d.options.Mode == Enforce {
		if rejected = d.reconcile(ctx, session); rejected != nil && !isRejected(rejected) {
			return rejected
		}
	}
	if err := d.countSteps(ctx, session); err != nil {
		return err
	}
	if err := tidy(ctx, session); err != nil {
		return err
	}
	return rejected
}

// lift takes the tenants off the ladder that another mode has put there, and ends their penalties. Mode off does so
// with all.
func (d *Detector) lift(ctx context.Context, session *pgx.Conn) error {
	if d.options.Mode != Enforce {
		var lifted int64
		err := session.QueryRow(ctx, `SELECT CASE WHEN EXISTS (SELECT FROM rate_limiter.overrides
				WHERE source = 'detector' AND author = 'abuse detector' AND expires_at > clock_timestamp())
			THEN rate_limiter.lift_penalty('', $1) ELSE 0 END`,
			"abuse detection is in mode "+string(d.options.Mode)).Scan(&lifted)
		if err != nil {
			return fmt.Errorf("lift penalties: %w", err)
		}
		if lifted > 0 {
			d.options.Log.Warn("the penalties of abuse detection are lifted", "penalties", lifted, "mode", d.options.Mode)
		}
	}
	_, err := session.Exec(ctx, `WITH before AS (
			SELECT tenant, step, mode FROM rate_limiter.abuse_tenants
			WHERE mode <> $1 AND (step <> 'none' OR override IS NOT NULL) FOR UPDATE
		), moves AS (
			INSERT INTO rate_limiter.abuse_steps (at, tenant, from_step, to_step, mode, reason)
			SELECT clock_timestamp(), tenant, step, 'none', mode, 'abuse detection is in mode ' || $1 FROM before
			WHERE step <> 'none'
		) UPDATE rate_limiter.abuse_tenants t SET `+offLadder+` FROM before WHERE before.tenant = t.tenant`,
		string(d.options.Mode))
	return leadership.Wrap("take tenants off the ladder", err)
}

// offLadder sets the columns of a tenant that starts anew. forgive_abuse has it too.
const offLadder = `state = (t.state - '{since,flagged_at,ended_at,banned_at}'::text[]) || '{"step": "none"}',
	reason = '', override = NULL, override_until = NULL`

func tidy(ctx context.Context, session *pgx.Conn) error {
	for sql, most := range map[string]any{
		`DELETE FROM rate_limiter.abuse_steps WHERE at < clock_timestamp() - $1::interval`: stepsKept,
		`DELETE FROM rate_limiter.abuse_tenants
			WHERE scored_at < clock_timestamp() - $1::interval AND override IS NULL`: stateKept,
		`DELETE FROM rate_limiter.abuse_tenants WHERE override IS NULL AND tenant IN (
			SELECT tenant FROM rate_limiter.abuse_tenants ORDER BY scored_at DESC OFFSET $1)`: maxTenants,
	} {
		if _, err := session.Exec(ctx, sql, most); err != nil {
			return fmt.Errorf("tidy abuse detection: %w", err)
		}
	}
	return nil
}

// maxOrgs bounds the tenants with an org_id of their own; all others share otherOrg.
const (
	maxOrgs  = 200
	otherOrg = "other"
)

// Stats counts what a detector has flagged, and the tenants that it last found on the ladder.
type Stats struct {
	Flags []Flagged `metric:""`
	Steps OnSteps   `metric:""`
}

// Flagged counts the minutes in which a tenant was flagged, by signal.
type Flagged struct {
	Org     string            `label:"org_id"`
	Minutes map[Signal]uint64 `metric:"abuse_detection_flags_total reason"`
}

// OnSteps counts tenants by their step.
type OnSteps struct {
	Mode    Mode             `label:"mode"`
	Tenants map[string]int64 `metric:"abuse_orgs step"`
}

// Stats returns what the detector has counted.
func (d *Detector) Stats() Stats {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := Stats{Steps: OnSteps{d.options.Mode, map[string]int64{}}}
	for org, minutes := range d.flags {
		s.Flags = append(s.Flags, Flagged{org, maps.Clone(minutes)})
	}
	for _, step := range StepNames()[1:] {
		s.Steps.Tenants[step] = d.steps[step]
	}
	return s
}

func (d *Detector) record(scored []*tenant) {
	for _, t := range scored {
		if t.verdict.Moved() {
			d.options.Log.Warn("abuse detection: a tenant has come to another step", "tenant", t.Tenant, "from",
				t.verdict.From.String(), "to", t.verdict.To.String(), "mode", d.options.Mode, "reason", t.moveReason())
		}
		flags := slices.CompactFunc(slices.Clone(t.verdict.Flags), func(a, b Flag) bool { return a.Signal == b.Signal })
		for _, f := range flags {
			d.countFlag(t.Tenant, f.Signal)
		}
	}
}

func (d *Detector) countFlag(org string, signal Signal) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !utf8.ValidString(org) || d.flags[org] == nil && len(d.flags) >= maxOrgs {
		org = otherOrg
	}
	if d.flags[org] == nil { // a series begins at 0, so the first flag is an increase
		d.flags[org] = map[Signal]uint64{DeniedShare: 0, Spike: 0, Breadth: 0}
	}
	d.flags[org][signal]++
}

func (d *Detector) countSteps(ctx context.Context, session *pgx.Conn) error {
	rows, _ := session.Query(ctx, `SELECT step, count(*) FROM rate_limiter.abuse_tenants
		WHERE step <> 'none' OR override IS NOT NULL GROUP BY step`)
	steps := map[string]int64{}
	var step string
	var n int64
	if _, err := pgx.ForEachRow(rows, []any{&step, &n}, func() error { steps[step] = n; return nil }); err != nil {
		return fmt.Errorf("count steps: %w", err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.steps = steps
	return nil
}
