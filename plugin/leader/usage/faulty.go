package usage

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

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

// setAside sets a batch aside whose rows the tables reject.
func (s *session) setAside(ctx context.Context, h head, fault error) error {
	u := &unpacking{session: s, fault: fault.Error()}
	err := s.transact(ctx, func(tx pgx.Tx, now state) error {
		u.tx, u.state = tx, now
		if err := u.makePlan(ctx); err != nil {
			return err
		}
		if len(u.plan.add) == 0 || u.plan.add[0].Epoch != h.Epoch || u.plan.add[0].Seq != h.Seq {
			return errors.New("another leader has changed it")
		}
		origin := u.plan.origins[0]
		origin.Faulty++
		if err := u.markFaulty(ctx, map[int]string{0: u.fault}); err != nil {
			return err
		}
		if err := u.writeSources(ctx); err != nil {
			return err
		}
		u.done = Stats{Faulty: 1, Again: u.plan.again, Gaps: origin.Gaps}
		return u.deleteBatches(ctx, u.plan.drop)
	})
	if err != nil {
		return fmt.Errorf("set a batch of node %q aside: %w", h.Node, err)
	}
	s.add(u.done)
	s.logRound(u.done, u.fault)
	return nil
}

// retryFaulty tries the batches that were set aside once more. They are below last_seq of their sources; that they are
// still there shows that they were never added.
func (s *session) retryFaulty(ctx context.Context) error {
	heads, err := listFaulty(ctx, s.conn, selectFaulty)
	if err != nil {
		return err
	}
	for i := range heads {
		if err := s.retry(ctx, &heads[i]); err != nil {
			return fmt.Errorf("retry a batch of node %q: %w", heads[i].Node, err)
		}
	}
	return nil
}

// listFaulty returns batches that were set aside.
func listFaulty(ctx context.Context, conn *pgx.Conn, sql string, args ...any) ([]head, error) {
	rows, _ := conn.Query(ctx, sql, args...)
	heads, err := pgx.CollectRows(rows, pgx.RowToStructByPos[head])
	if err != nil {
		return nil, fmt.Errorf("list the batches that are set aside: %w", err)
	}
	return heads, nil
}

// dropFaulty drops batches that were set aside and are too late by now.
func (s *session) dropFaulty(ctx context.Context) error {
	return s.transact(ctx, func(tx pgx.Tx, now state) error {
		heads, err := listFaulty(ctx, tx.Conn(), selectOldFaulty, now.oldest())
		if err != nil {
			return err
		}
		u := &unpacking{session: s, tx: tx}
		return u.deleteBatches(ctx, heads)
	})
}

// retry adds a batch that was set aside, drops it if it is too late, or leaves it.
func (s *session) retry(ctx context.Context, h *head) error {
	u := &unpacking{session: s, sums: sums{}, tiers: tiers{}}
	err := s.transact(ctx, func(tx pgx.Tx, now state) error {
		u.tx, u.state = tx, now
		var payload []byte
		err := tx.QueryRow(ctx, selectPayload, h.Node, h.Epoch, h.Seq).Scan(&payload)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil // another leader was faster
		}
		if err != nil {
			return fmt.Errorf("read it: %w", err)
		}
		if !h.Began.Before(now.oldest()) {
			b, err := decodeBatch(h, payload)
			if err != nil {
				return nil // it stays set aside
			}
			u.sums.addBatch(h.Began, b.Rows)
			u.tiers.addBatch(h.Began.Add(b.Span), b.Tiers)
			u.done.Batches = 1
			if err := u.write(ctx); err != nil {
				return err
			}
		}
		return u.deleteBatches(ctx, []head{*h})
	})
	if err != nil && isDataFault(err) {
		return nil // it stays set aside
	}
	if err == nil {
		s.commitNames(u.names)
		s.add(u.done)
	}
	return err
}
