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

// retryFaulty tries the batches that were set aside once more. They are below last_seq of their sources; that they are
// still there shows that they were never added.
func (s *session) retryFaulty(ctx context.Context) error {
	rows, _ := s.conn.Query(ctx, selectFaulty)
	heads, err := pgx.CollectRows(rows, pgx.RowToStructByPos[head])
	if err != nil {
		return fmt.Errorf("list the batches that are set aside: %w", err)
	}
	for i := range heads {
		if err := s.retry(ctx, &heads[i]); err != nil {
			return fmt.Errorf("retry a batch of node %q: %w", heads[i].Node, err)
		}
	}
	return nil
}

// retry adds a batch that was set aside, or leaves it.
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
		b, err := decodeBatch(h, payload)
		if err != nil || h.Began.Before(now.oldest()) {
			return nil // it stays set aside, or dropFaulty drops it
		}
		u.sums.addBatch(h.Began, b.Rows)
		u.tiers.addBatch(h.Began.Add(b.Span), b.Tiers)
		u.done.Batches = 1
		if err := u.write(ctx); err != nil {
			return err
		}
		return u.deleteBatches(ctx, []head{*h})
	})
	if err == nil {
		s.commitNames(u.names)
		s.add(u.done)
	}
	return err
}

// dropFaulty drops batches that were set aside and are too late by now.
func (s *session) dropFaulty(ctx context.Context) error {
	return s.transact(ctx, func(tx pgx.Tx, now state) error {
		if _, err := tx.Exec(ctx, deleteOldFaulty, now.oldest()); err != nil {
			return fmt.Errorf("drop the batches that are set aside: %w", err)
		}
		return nil
	})
}
