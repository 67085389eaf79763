package abuse

import (
	"context"
	"fmt"
	"slices"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
)

// maxOrgs bounds the tenants with an org_id of their own; all others share otherOrg.
const (
	maxOrgs  = 200
	otherOrg = "other"
)

// counts holds what a detector reports.
type counts struct {
	flags map[flagKey]int64
	orgs  int // in flags
	steps map[string]int64
}

type flagKey struct {
	org    string
	signal Signal
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
	c := &d.counts
	if !utf8.ValidString(org) || org == otherOrg || !c.has(org) && c.orgs >= maxOrgs {
		org = otherOrg
	}
	if !c.has(org) {
		c.orgs++
		for _, each := range Signals() { // a series begins at 0, so the first flag is an increase
			c.flags[flagKey{org, each}] = 0
		}
	}
	c.flags[flagKey{org, signal}]++
}

func (c *counts) has(org string) bool {
	_, ok := c.flags[flagKey{org, DeniedShare}]
	return ok
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
	d.counts.steps = steps
	return nil
}

var (
	flagsDesc = prometheus.NewDesc("rate_limiter_abuse_detection_flags_total",
		"Minutes in which abuse detection flagged an org, by signal: denied_share, spike, breadth. The first orgs have an "+
			"org_id of their own, all others share other.", []string{"org_id", "reason"}, nil)
	stepsDesc = prometheus.NewDesc("rate_limiter_abuse_orgs",
		"Orgs on each step of the ladder of abuse detection, when this process last scored them as the leader; in mode "+
			"shadow steps have no effect.",
		[]string{"step", "mode"}, nil)
)

// Describe implements prometheus.Collector.
func (*Detector) Describe(to chan<- *prometheus.Desc) {
	to <- flagsDesc
	to <- stepsDesc
}

// Collect implements prometheus.Collector.
func (d *Detector) Collect(to chan<- prometheus.Metric) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for key, n := range d.counts.flags {
		to <- prometheus.MustNewConstMetric(flagsDesc, prometheus.CounterValue, float64(n), key.org, string(key.signal))
	}
	for _, step := range StepNames()[1:] {
		to <- prometheus.MustNewConstMetric(stepsDesc, prometheus.GaugeValue, float64(d.counts.steps[step]), step,
			string(d.options.Mode))
	}
}
