package usage

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/leadership"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/observe/usage"
)

type unpacking struct {
	*session
	tx     pgx.Tx
	state  state
	plan   plan
	sums   sums
	denied denials
	tiers  tiers
	models []*modelRow
	fault  string // of one batch that is set aside
	done   Stats
}

// state holds the row of usage_state, and the time.
type state struct {
	hoursUntil, daysUntil time.Time
	now                   time.Time
}

func (s *state) oldest() time.Time { return s.now.Truncate(24*time.Hour).AddDate(0, 0, -keptDays) }

// keptDays is the number of days before today for which minutes are kept. keep_usage_partitions has it too.
const keptDays = 2

// unpack adds the batches that are ready, up to a bound, and reports whether there are more.
func (s *session) unpack(ctx context.Context) (more bool, err error) {
	u := &unpacking{session: s, sums: sums{}, denied: denials{}, tiers: tiers{}}
	err = s.transact(ctx, func(tx pgx.Tx, now state) error {
		u.tx, u.state = tx, now
		if err := u.makePlan(ctx); err != nil || len(u.plan.sources) == 0 {
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
		nodes, err := pgx.CollectRows(rows, pgx.RowToAddrOfStructByPos[struct{ Login, Node string }])
		if err == nil && len(nodes) > 0 {
			_, err = tx.Exec(ctx, countWaiting, columnsOf(nodes)...)
		}
		return err
	})
	return leadership.Wrap("count what waits", err)
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
	heads, err := pgx.CollectRows(rows, pgx.RowToAddrOfStructByPos[head])
	if err != nil {
		return fmt.Errorf("list batches: %w", err)
	}
	u.plan = planBatches(heads, u.state, u.options.GapAfter)
	return nil
}

func (u *unpacking) apply(ctx context.Context) error {
	for _, step := range [...]func(context.Context) error{
		u.decode, u.write, u.writeModels, u.writeDenials, u.markFaulty, u.writeSources, u.deleteBatches,
	} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	u.done.Again = u.plan.again
	for _, s := range u.plan.sources {
		u.done.Gaps += s.Gaps
		u.done.TooLate += s.TooLate
		u.done.Faulty += s.Faulty
	}
	return nil
}

// decode reads the payloads of the batches to add, and collects what they have, or why they cannot be decoded.
func (u *unpacking) decode(ctx context.Context) error {
	if len(u.plan.add) == 0 {
		return nil
	}
	rows, _ := u.tx.Query(ctx, selectPayloads, keysOf(u.plan.add)...)
	var place int
	var payload []byte
	_, err := pgx.ForEachRow(rows, []any{&place, &payload}, func() error {
		h := u.plan.add[place-1]
		b, err := decodeBatch(h, payload)
		if err != nil {
			h.fault, u.fault = err.Error(), err.Error()
			h.source.Faulty++
			return nil
		}
		h.source.Watermark = later(h.source.Watermark, h.Began.Add(b.Span))
		u.addBatch(h.Began, b)
		return nil
	})
	return leadership.Wrap("read batches", err)
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

func (u *unpacking) writeSources(ctx context.Context) error {
	_, err := u.tx.Exec(ctx, upsertSources, columnsOf(u.plan.sources)...)
	return leadership.Wrap("write the sources", err)
}

func keysOf(batches []*head) []any { return columnsOf(batches)[:3] }

// deleteBatches deletes the batches of the plan that are not set aside.
func (u *unpacking) deleteBatches(ctx context.Context) error {
	added := slices.DeleteFunc(slices.Clone(u.plan.add), func(h *head) bool { return h.fault != "" })
	u.done.Batches = int64(len(added))
	batches := slices.Concat(u.plan.drop, added)
	if len(batches) == 0 {
		return nil
	}
	_, err := u.tx.Exec(ctx, deleteBatches, keysOf(batches)...)
	return leadership.Wrap("delete batches", err)
}

// markFaulty sets batches aside, which keeps them with their faults.
func (u *unpacking) markFaulty(ctx context.Context) error {
	for _, h := range u.plan.add {
		if h.fault == "" {
			continue
		}
		if _, err := u.tx.Exec(ctx, markFaulty, h.Node, h.Epoch, h.Seq, h.fault); err != nil {
			return fmt.Errorf("set a batch aside: %w", err)
		}
	}
	return nil
}
