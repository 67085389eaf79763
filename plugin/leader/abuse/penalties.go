package abuse

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// penalized is a tenant that has a penalty, or should have one.
type penalized struct {
	Tenant string
	State  State
	Reason string
	Has    bool // a penalty is remembered
	Until  time.Time
	Exists bool  // its override does
	Factor int64 // of the override, in thousandths; 0: a ban
	Now    time.Time
}

// reconcile makes the overrides of steps, and ends those without a step. A penalty that the database rejects keeps no
// other tenant's from being made or ended: the error names one such tenant.
func (d *Detector) reconcile(ctx context.Context, session *pgx.Conn) error {
	rows, _ := session.Query(ctx, `SELECT t.tenant, t.state, t.reason, t.override IS NOT NULL,
			coalesce(t.override_until, 'epoch'), o.id IS NOT NULL, coalesce(o.factor, 0),
			clock_timestamp()
		FROM rate_limiter.abuse_tenants t LEFT JOIN rate_limiter.overrides o ON o.id = t.override
		WHERE t.step <> 'none' OR t.override IS NOT NULL ORDER BY t.tenant`)
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[penalized])
	if err != nil {
		return fmt.Errorf("read penalties: %w", err)
	}
	var rejected error
	writes := 0
	for i := range all {
		changed, err := all[i].reconcile(ctx, session)
		if err != nil {
			err = fmt.Errorf("penalty of %q: %w", all[i].Tenant, err)
			if !isRejected(err) {
				return err
			}
			rejected = err
			continue
		}
		if changed {
			writes++
		}
		if writes == maxWrites {
			d.options.Log.Warn("many tenants get or lose a penalty: the next run continues", "penalties", writes)
			break
		}
	}
	return rejected
}

// The classes of SQLSTATE of errors that are due to what a statement would write.
const classData, classIntegrity = "22", "23"

// isRejected reports whether the database rejected what was to be written, and not the session or the statement.
func isRejected(err error) bool {
	fault := new(pgconn.PgError)
	return errors.As(err, &fault) &&
		(strings.HasPrefix(fault.Code, classData) || strings.HasPrefix(fault.Code, classIntegrity))
}

// reconcile makes the override of a tenant what its step says, and reports whether it wrote.
func (p *penalized) reconcile(ctx context.Context, session *pgx.Conn) (changed bool, err error) {
	step := p.State.Step
	if step < Half {
		if !p.Has {
			return false, nil
		}
		return true, p.set(ctx, session, step, `SELECT NULL::bigint, NULL::timestamptz
			FROM rate_limiter.lift_penalty($1, $2) WHERE $3::bigint IS NULL AND $4::timestamptz IS NULL`,
			p.Tenant, "abuse detection: "+cmp.Or(p.Reason, "no penalty"), nil, nil)
	}
	until := p.Now.Add(penaltyTime)
	isBan := step.BanTime() > 0
	if isBan { // it is made once
		until = p.Now.Add(step.BanTime())
	}
	isEnded := p.Has && !p.Exists && p.Until.After(p.Now) // by an operator: the next score forgives the tenant
	isMade := p.Exists && p.Factor == step.Factor() && (isBan || p.Until.After(p.Now.Add(renewBefore)))
	if isEnded || isMade {
		return false, nil
	}
	return true, p.set(ctx, session, step, `SELECT rate_limiter.penalize($1, $3, $4, $2), $4::timestamptz`,
		p.Tenant, "abuse detection: "+p.Reason, step.Factor(), until)
}

var errMoved = errors.New("the tenant has come to another step")

// set runs a statement that returns the override of the tenant and its end, and stores both. Where the tenant was
// forgiven meanwhile, nothing changes.
func (p *penalized) set(ctx context.Context, session *pgx.Conn, step Step, sql string, args ...any) error {
	err := pgx.BeginFunc(ctx, session, func(tx pgx.Tx) error {
		var id *int64
		var until *time.Time
		if err := tx.QueryRow(ctx, sql, args...).Scan(&id, &until); err != nil {
			return err
		}
		done, err := tx.Exec(ctx, `UPDATE rate_limiter.abuse_tenants SET override = $2, override_until = $3
			WHERE tenant = $1 AND step = $4`, p.Tenant, id, until, step.String())
		if err == nil && done.RowsAffected() == 0 {
			err = errMoved
		}
		return err
	})
	if errors.Is(err, errMoved) {
		return nil
	}
	return err
}
