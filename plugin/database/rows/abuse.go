package rows

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// MaxPardon bounds how long a tenant can be forgiven.
const MaxPardon = 30 * 24 * time.Hour

// AbuseState is what abuse detection remembers of a tenant.
type AbuseState struct {
	Tenant        string     `json:"org_id"`
	Step          string     `json:"step"                     doc:"half and tenth multiply each limit."             enum:"none,warn,half,tenth,ban_5m,ban_1h"`
	Mode          string     `json:"mode,omitempty"           doc:"shadow: the step has no effect. Absent: the org was not scored within a week." enum:"shadow,enforce"`
	Reason        string     `json:"reason,omitempty"         doc:"Why the org is on the step, with the numbers."`
	Since         *time.Time `json:"since,omitempty"          doc:"When it came to the step."`
	FlaggedAt     *time.Time `json:"flagged_at,omitempty"     doc:"The last time."`
	ForgivenUntil *time.Time `json:"forgiven_until,omitempty" doc:"It is on no step until then."`
	Override      *int64     `json:"override,omitempty"       doc:"The id of its penalty."`
	OverrideUntil *time.Time `json:"override_until,omitempty" doc:"When the penalty expires, unless it is renewed."`
	Usual         float64    `json:"usual_requests"           doc:"The baseline: requests of a minute in which it sends."`
	Learned       int64      `json:"learned_minutes"          doc:"The minutes that the baseline is from."`
	ScoredAt      time.Time  `json:"scored_at,omitzero"       doc:"The end of the last minute that was scored."`
}

// AbuseMove is a move of a tenant on the ladder.
type AbuseMove struct {
	At     time.Time `json:"at"`
	From   string    `json:"from"   db:"from_step" enum:"none,warn,half,tenth,ban_5m,ban_1h"`
	To     string    `json:"to"     db:"to_step"   enum:"none,warn,half,tenth,ban_5m,ban_1h"`
	Mode   string    `json:"mode"   enum:"shadow,enforce"`
	Reason string    `json:"reason"`
}

// AbuseHistory is what abuse detection remembers of a tenant, with its last moves.
type AbuseHistory struct {
	AbuseState
	Moves []AbuseMove `json:"moves" doc:"The last one is first. Moves are kept for 30 days."`
}

const maxMoves = 100

// AbuseFilter selects tenants. The zero value selects those on the ladder.
type AbuseFilter struct {
	Step string `query:"step" enum:"none,warn,half,tenth,ban_5m,ban_1h" doc:"Only tenants on this step."`
	All  bool   `query:"all" doc:"Also tenants on no step, with their usual requests."`

	After AbuseCursor // only those behind: the last one of the page before
	Max   int         // at most so many; 0: all
}

// AbuseCursor is the place of a tenant in the order of Abuse. The zero value is before the first one.
type AbuseCursor struct{ Step, Tenant string }

const abuseRank = `array_position(ARRAY['ban_1h', 'ban_5m', 'tenth', 'half', 'warn', 'none'], `

const abuseColumns = `tenant, step, mode, reason, (state ->> 'since')::timestamptz AS since,
	(state ->> 'flagged_at')::timestamptz AS flagged_at, scored_at,
	CASE WHEN forgiven_until > clock_timestamp() THEN forgiven_until END AS forgiven_until, override, override_until,
	coalesce((state -> 'demand' ->> 'mean')::float8, 0) AS usual,
	coalesce((state -> 'demand' ->> 'learned')::bigint, 0) AS learned`

// Abuse returns what abuse detection remembers of tenants, those on the highest step first.
func (s *DB) Abuse(ctx context.Context, f AbuseFilter) ([]AbuseState, error) {
	var w where
	w.equal("step", f.Step)
	if !f.All && f.Step == "" {
		w.conditions = append(w.conditions, "(step <> 'none' OR override IS NOT NULL)") // as the index has it
	}
	if f.After.Step != "" {
		w.args = append(w.args, f.After.Step)
		w.add(fmt.Sprintf(`(`+abuseRank+`step), tenant COLLATE "C") > (`+abuseRank+`$%d), %%s)`, len(w.args)), f.After.Tenant)
	}
	return readAll[AbuseState](ctx, s.pool, "list abuse",
		`SELECT `+abuseColumns+` FROM rate_limiter.abuse_tenants`+w.String()+
			` ORDER BY `+abuseRank+`step), tenant COLLATE "C"`+limitTo(f.Max), w.args...)
}

// AbuseOf returns what abuse detection remembers of a tenant. One that was not scored within a week is on no step.
func (s *DB) AbuseOf(ctx context.Context, tenant string) (AbuseHistory, error) {
	h, doing := AbuseHistory{}, "read the abuse of "+tenant
	var err error
	h.AbuseState, err = one[AbuseState](ctx, s.pool, abuseOf(tenant),
		`SELECT `+abuseColumns+` FROM rate_limiter.abuse_tenants WHERE tenant = $1`, tenant)
	if IsMissing(err) {
		h.AbuseState, err = AbuseState{Tenant: tenant, Step: "none"}, nil
	}
	if err != nil {
		return AbuseHistory{}, fail(doing, err)
	}
	h.Moves, err = collect[AbuseMove](ctx, s.pool, `SELECT at, from_step, to_step, mode, reason
		FROM rate_limiter.abuse_steps WHERE tenant = $1 ORDER BY id DESC LIMIT $2`, tenant, maxMoves)
	return h, fail(doing, err)
}

// abuseOf names what a NotFoundError is about.
func abuseOf(tenant string) string { return fmt.Sprintf("a score of tenant %q", tenant) }

// Forgiven reports what ForgiveAbuse has done.
type Forgiven struct {
	Tenant    string    `json:"org_id"`
	Until     time.Time `json:"forgiven_until"  doc:"The org is on no step until then."`
	Overrides []int64   `json:"ended_overrides" doc:"The penalties that were ended, by id."`
}

// ForgiveAbuse takes a tenant off the ladder of abuse detection, ends its penalty, and keeps it off the ladder for a
// time. It returns the version without the penalty, or a NotFoundError if nothing is remembered of the tenant.
func (s *DB) ForgiveAbuse(
	ctx context.Context, c Change, tenant string, length time.Duration,
) (Forgiven, int64, error) {
	if length < 0 || length > MaxPardon {
		return Forgiven{}, 0, &InvalidError{Field: "for", Problem: "must be 0 to 30 days"}
	}
	return write(ctx, s, "forgive tenant "+tenant, c, func(tx pgx.Tx) (Forgiven, error) {
		done, found := Forgiven{Tenant: tenant, Overrides: []int64{}}, false
		err := tx.QueryRow(ctx, `SELECT rate_limiter.forgive_abuse($1, $2), clock_timestamp() + $2`, tenant, length).
			Scan(&found, &done.Until)
		if err == nil && !found {
			err = &NotFoundError{What: abuseOf(tenant)}
		}
		if err != nil {
			return Forgiven{}, err
		}
		rows, _ := tx.Query(ctx, `DELETE FROM rate_limiter.overrides
			WHERE tenant = $1 AND source = 'detector' AND author = 'abuse detector' RETURNING id`, tenant)
		if done.Overrides, err = pgx.AppendRows(done.Overrides, rows, pgx.RowTo[int64]); err != nil {
			return Forgiven{}, err
		}
		details, err := json.Marshal(done)
		if err == nil {
			_, err = tx.Exec(ctx, `SELECT rate_limiter.record_action('forgive', 'abuse', $1, $2)`, tenant, details)
		}
		return done, err
	})
}
