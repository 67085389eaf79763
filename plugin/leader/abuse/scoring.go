package abuse

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/leadership"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/events"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/events/outbox"
)

// scoreNext scores the next minute, if one is due, and reports whether more may be.
func (d *Detector) scoreNext(ctx context.Context, session *pgx.Conn) (more bool, err error) {
	var scored []*tenant
	err = pgx.BeginFunc(ctx, session, func(tx pgx.Tx) error {
		minute, due, err := nextMinute(ctx, tx)
		if err != nil || !due {
			return err
		}
		all, err := d.observe(ctx, tx, minute)
		if err != nil {
			return err
		}
		more = true
		end := minute.Add(time.Minute)
		scored = slices.SortedFunc(maps.Values(all), func(a, b *tenant) int { return cmp.Compare(a.Tenant, b.Tenant) })
		d.scoreAll(scored, end)
		return d.write(ctx, tx, scored, end)
	})
	if err != nil {
		return false, fmt.Errorf("score a minute: %w", err)
	}
	d.record(scored)
	return more, nil
}

// nextMinute locks the mark, and returns the minute after it if that is over for long enough.
func nextMinute(ctx context.Context, tx pgx.Tx) (minute time.Time, due bool, err error) {
	var now time.Time
	err = tx.QueryRow(ctx, `SELECT scored_until, clock_timestamp() FROM rate_limiter.abuse_state FOR UPDATE`).
		Scan(&minute, &now)
	if err != nil {
		return minute, false, fmt.Errorf("read the mark: %w", err)
	}
	ready := now.Add(-scoreAfter).Truncate(time.Minute)
	if oldest := ready.Add(-catchUp); minute.Before(oldest) {
		minute = oldest
	}
	if minute.After(ready.Add(catchUp)) { // the database's clock was set back
		minute = ready.Add(-time.Minute)
	}
	return minute, minute.Before(ready), nil
}

// Where so many tenants are flagged in one minute, and more than one in massShare, no tenant climbs.
const massFlagged, massShare = 20, 5

// scoreAll scores the minute of all tenants that ends at end. Attacks are by few tenants. If many are flagged at once,
// a change of ours has a part in it, such as a limit that was lowered for all.
func (d *Detector) scoreAll(all []*tenant, end time.Time) {
	flagged, before := 0, make([]State, len(all))
	for i, t := range all {
		before[i] = t.State
		d.score(t, end)
		if t.verdict.Flagged() {
			flagged++
		}
	}
	if flagged < massFlagged || flagged*massShare <= len(all) {
		return
	}
	d.options.Log.Error("abuse detection flags so many tenants at once that none gets a higher step: look for a limit "+
		"that was lowered, or clients that all retry", "flagged", flagged, "tenants", len(all))
	for i, t := range all {
		t.State = before[i]
		t.seen.Most = min(t.seen.Most, t.State.Step)
		d.score(t, end)
	}
}

func (d *Detector) score(t *tenant, end time.Time) {
	if t.Ended != 0 {
		t.ForgivenUntil = end.Add(pardon)
		t.seen.Most = None
	}
	t.State, t.verdict = Score(t.State, t.seen, d.options.DeniedShare, end)
	switch {
	case t.Ended != 0:
		t.State = t.State.Forgive()
		t.Reason = ""
	case t.verdict.Moved() || t.verdict.Flagged():
		t.Reason = t.verdict.Reason()
	case t.State.Step == None:
		t.Reason = ""
	}
}

func (t *tenant) moveReason() string {
	if t.Ended != 0 {
		return fmt.Sprintf("an operator ended override %d: no penalty for %v", t.Ended, pardon)
	}
	return t.verdict.Reason()
}

func (d *Detector) write(ctx context.Context, tx pgx.Tx, scored []*tenant, end time.Time) error {
	if err := d.writeStates(ctx, tx, scored, end); err != nil {
		return err
	}
	for _, t := range scored {
		if !t.verdict.Moved() {
			continue
		}
		if err := d.writeMove(ctx, tx, t, end); err != nil {
			return err
		}
	}
	_, err := tx.Exec(ctx, `UPDATE rate_limiter.abuse_state SET scored_until = $1`, end)
	return leadership.Wrap("move the mark", err)
}

func (d *Detector) writeStates(ctx context.Context, tx pgx.Tx, scored []*tenant, end time.Time) error {
	var names, reasons []string
	var states []State
	var forgiven []time.Time
	ended := []string{} // not NULL in SQL
	for _, t := range scored {
		names, states, reasons = append(names, t.Tenant), append(states, t.State), append(reasons, t.Reason)
		forgiven = append(forgiven, t.ForgivenUntil)
		if t.Ended != 0 {
			ended = append(ended, t.Tenant)
		}
	}
	_, err := tx.Exec(ctx, `INSERT INTO rate_limiter.abuse_tenants AS t
			(tenant, state, mode, reason, forgiven_until, scored_at)
		SELECT name, state, $5, reason, CASE WHEN forgiven > $6 THEN forgiven END, $6
		FROM unnest($1::text[], $2::jsonb[], $3::text[], $4::timestamptz[]) k (name, state, reason, forgiven)
		ON CONFLICT (tenant) DO UPDATE SET state = excluded.state, mode = excluded.mode, reason = excluded.reason,
			forgiven_until = excluded.forgiven_until, scored_at = excluded.scored_at,
			override = CASE WHEN t.tenant = ANY ($7) THEN NULL ELSE t.override END,
			override_until = CASE WHEN t.tenant = ANY ($7) THEN NULL ELSE t.override_until END`,
		names, states, reasons, forgiven, d.options.Mode, end, ended)
	return leadership.Wrap("write states", err)
}

// stepEvent is the data of an event. schema/abuse_step.schema.json describes it.
type stepEvent struct {
	Version int    `json:"version"`
	Org     string `json:"org"`
	From    Step   `json:"from"`
	To      Step   `json:"to"`
	Mode    Mode   `json:"mode"`
	Reason  string `json:"reason"`
}

const eventVersion = 1

func (d *Detector) writeMove(ctx context.Context, tx pgx.Tx, t *tenant, end time.Time) error {
	e := stepEvent{eventVersion, t.Tenant, t.verdict.From, t.verdict.To, d.options.Mode, t.moveReason()}
	var id int64
	err := tx.QueryRow(ctx, `INSERT INTO rate_limiter.abuse_steps (at, tenant, from_step, to_step, mode, reason)
		VALUES ($1, $2, $3, $4, $5, $6) RETURNING id`,
		end, t.Tenant, e.From.String(), e.To.String(), e.Mode, e.Reason).Scan(&id)
	if err != nil {
		return fmt.Errorf("record a step of %q: %w", t.Tenant, err)
	}
	data, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("encode a step of %q: %w", t.Tenant, err)
	}
	return outbox.Add(ctx, tx, events.Event{
		ID: fmt.Sprint("abuse-step-", id), Source: events.Control, Type: events.AbuseStep,
		Time: end, Tenant: t.Tenant, Data: data,
	})
}
