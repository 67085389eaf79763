package usage

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/observe/usage"
)

// unpacking is one transaction of the leader.
type unpacking struct {
	*session
	tx     pgx.Tx
	state  state
	plan   plan
	sums   sums
	denied denials
	tiers  tiers
	fault  string // of one batch that is set aside
	done   Stats
}

// state holds the row of usage_state, and the time.
type state struct {
	hoursUntil, daysUntil time.Time
	now                   time.Time
}

// oldest returns the oldest minute that is kept.
func (s *state) oldest() time.Time { return s.now.Truncate(24*time.Hour).AddDate(0, 0, -keptDays) }

// keptDays is the number of days before today for which minutes are kept. keep_usage_partitions has it too.
const keptDays = 2

// unpack adds the batches that are ready, up to a bound, and reports whether there are more.
func (s *session) unpack(ctx context.Context) (more bool, err error) {
	u := &unpacking{session: s, sums: sums{}, denied: denials{}, tiers: tiers{}}
	err = s.transact(ctx, func(tx pgx.Tx, now state) error {
		u.tx, u.state = tx, now
		if err := u.makePlan(ctx); err != nil || u.plan.empty() {
			return err
		}
		return u.apply(ctx)
	})
	if err != nil {
		return false, fmt.Errorf("unpack usage: %w", err)
	}
	s.add(u.done)
	s.logRound(u.done, u.fault)
	return u.plan.more, nil
}

// countWaiting counts what waits of each node, for the bounds of report_usage.
func (s *session) countWaiting(ctx context.Context) error {
	err := pgx.BeginFunc(ctx, s.conn, func(tx pgx.Tx) error {
		rows, _ := tx.Query(ctx, lockNodes)
		nodes, err := pgx.CollectRows(rows, pgx.RowToStructByPos[struct{ Login, Node string }])
		if err == nil && len(nodes) > 0 {
			_, err = tx.Exec(ctx, countWaiting, columnsOf(nodes)...)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("count what waits: %w", err)
	}
	return nil
}

// transact runs do in a transaction that no other leader's overlaps.
func (s *session) transact(ctx context.Context, do func(pgx.Tx, state) error) error {
	return pgx.BeginFunc(ctx, s.conn, func(tx pgx.Tx) error {
		var now state
		err := tx.QueryRow(ctx, `SELECT hours_until, days_until, clock_timestamp() FROM rate_limiter.usage_state FOR UPDATE`).
			Scan(&now.hoursUntil, &now.daysUntil, &now.now)
		if err != nil {
			return fmt.Errorf("read the state: %w", err)
		}
		return do(tx, now)
	})
}

func (u *unpacking) makePlan(ctx context.Context) error {
	rows, _ := u.tx.Query(ctx, selectHeads, maxBatches)
	heads, err := pgx.CollectRows(rows, pgx.RowToStructByPos[head])
	if err != nil {
		return fmt.Errorf("list batches: %w", err)
	}
	u.plan = planBatches(heads, bounds{u.state.now, u.state.oldest(), u.options.GapAfter})
	return nil
}

// apply does what is planned.
func (u *unpacking) apply(ctx context.Context) error {
	faulty, err := u.decode(ctx)
	if err != nil {
		return err
	}
	if err := u.write(ctx); err != nil {
		return err
	}
	if err := u.writeDenials(ctx); err != nil {
		return err
	}
	if err := u.markFaulty(ctx, faulty); err != nil {
		return err
	}
	if err := u.writeSources(ctx); err != nil {
		return err
	}
	added := u.plan.drop
	for i, h := range u.plan.add {
		if faulty[i] == "" {
			added = append(added, h)
			u.done.Batches++
		}
	}
	u.done.Again = u.plan.again
	for _, s := range u.plan.sources {
		u.done.Gaps += s.Gaps
		u.done.TooLate += s.TooLate
		u.done.Faulty += s.Faulty
	}
	return u.deleteBatches(ctx, added)
}

// decode reads the payloads of the batches to add, and collects what they have. It returns the faults of those that
// cannot be decoded, by their place in the plan.
func (u *unpacking) decode(ctx context.Context) (faulty map[int]string, err error) {
	faulty = map[int]string{}
	if len(u.plan.add) == 0 {
		return faulty, nil
	}
	rows, _ := u.tx.Query(ctx, selectPayloads, keysOf(u.plan.add)...)
	var place int
	var payload []byte
	_, err = pgx.ForEachRow(rows, []any{&place, &payload}, func() error {
		h, s := &u.plan.add[place-1], u.plan.origins[place-1]
		b, err := decodeBatch(h, payload)
		if err != nil {
			u.fault = err.Error()
			faulty[place-1] = u.fault
			s.Faulty++
			return nil
		}
		s.Watermark = later(s.Watermark, h.Began.Add(b.Span))
		u.addBatch(h.Began, b)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read batches: %w", err)
	}
	return faulty, nil
}

// decodeBatch returns the batch in a payload. It must be the one that the payload was reported as.
func decodeBatch(h *head, payload []byte) (*usage.Batch, error) {
	b := new(usage.Batch)
	if err := b.UnmarshalBinary(payload); err != nil {
		return nil, err
	}
	if b.Epoch != h.Epoch || b.Seq != h.Seq {
		return nil, fmt.Errorf("it is batch %d of %s, and was reported as batch %d of %s", b.Seq, b.Epoch, h.Seq, h.Epoch)
	}
	return b, nil
}

// writeSources records how far the sources are unpacked.
func (u *unpacking) writeSources(ctx context.Context) error {
	sources := make([]source, 0, len(u.plan.sources))
	for _, s := range u.plan.sources {
		sources = append(sources, *s)
	}
	if _, err := u.tx.Exec(ctx, upsertSources, columnsOf(sources)...); err != nil {
		return fmt.Errorf("write the sources: %w", err)
	}
	return nil
}

// keysOf returns the keys of batches as arrays, for unnest.
func keysOf(batches []head) []any { return columnsOf(batches)[:3] }

// deleteBatches deletes batches.
func (u *unpacking) deleteBatches(ctx context.Context, batches []head) error {
	if len(batches) == 0 {
		return nil
	}
	if _, err := u.tx.Exec(ctx, deleteBatches, keysOf(batches)...); err != nil {
		return fmt.Errorf("delete batches: %w", err)
	}
	return nil
}

// markFaulty sets batches aside, which keeps them with their faults.
func (u *unpacking) markFaulty(ctx context.Context, faulty map[int]string) error {
	for i, fault := range faulty {
		h := u.plan.add[i]
		if _, err := u.tx.Exec(ctx, markFaulty, h.Node, h.Epoch, h.Seq, fault); err != nil {
			return fmt.Errorf("set a batch aside: %w", err)
		}
	}
	return nil
}
