package abuse

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
)

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

// record counts the flags of a minute, and logs the moves.
func (d *Detector) record(scored []*tenant) {
	for _, t := range scored {
		if t.verdict.Moved() {
			d.options.Log.Warn("abuse detection: a tenant has come to another step", "tenant", t.name,
				"from", t.verdict.From.String(), "to", t.verdict.To.String(), "mode", string(t.mode), "reason", t.moveReason())
		}
		for _, signal := range Signals() {
			if slices.ContainsFunc(t.verdict.Flags, func(f Flag) bool { return f.Signal == signal }) {
				d.countFlag(t.name, signal)
			}
		}
	}
}

// countFlag counts a minute that a signal has flagged.
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

// countSteps counts the tenants on each step.
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
