package sender

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/events"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/events/outbox"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/events/webhook"
)

const (
	// Consumer is the name of the sender's cursor in the outbox.
	Consumer = "webhooks"

	// maxRead bounds the events that are read at a time.
	maxRead = 1000
	// maxEvents and maxBody bound a delivery. A single event may be larger than maxBody.
	maxEvents = 100
	maxBody   = 256 << 10
	// maxWaiting bounds the deliveries that wait for one webhook, and maxDenials how many may wait where one of denials is
	// added: there can be any number of those, and they leave room for notices.
	maxWaiting, maxDenials = 1000, 750
)

type hook struct {
	ID        int64
	Org       string
	Types     []string
	CreatedAt time.Time
	Waiting   int64

	batch   []events.Event
	size    int   // bytes of the data of batch
	dropped int64 // events that do not fit the queue
}

type queueing struct {
	*session
	hooks map[string][]*hook // by org
	now   time.Time
	made  int // deliveries
	batch pgx.Batch

	dropped int64 // events of all webhooks
}

// enqueue makes deliveries of events that are new in the outbox and of denials, and reports whether there may be more.
func (s *session) enqueue(ctx context.Context) (more bool, err error) {
	entries, err := outbox.Read(ctx, s.conn, Consumer, maxRead)
	if err != nil {
		return false, err
	}
	q := &queueing{session: s, now: s.now(), hooks: map[string][]*hook{}}
	err = pgx.BeginFunc(ctx, s.conn, func(tx pgx.Tx) error {
		denials, err := s.takeDenials(ctx, tx)
		if err != nil || len(entries)+len(denials) == 0 {
			return err
		}
		more = len(entries) == maxRead || len(denials) == maxRead
		if err := q.load(ctx, tx); err != nil {
			return fmt.Errorf("list webhooks: %w", err)
		}
		for _, e := range slices.Concat(entries, denials) {
			q.add(&e)
		}
		q.flushAll()
		if err := tx.SendBatch(ctx, &q.batch).Close(); err != nil {
			return fmt.Errorf("make deliveries: %w", err)
		}
		if len(entries) == 0 {
			return nil
		}
		return outbox.Move(ctx, tx, Consumer, entries[len(entries)-1].Position)
	})
	if err == nil {
		s.count(func(now *Stats) { now.Dropped += q.dropped })
	}
	return more, err
}

// takeDenials removes denials that nodes have reported, the oldest first. It leaves out what is no CloudEvent, so that
// no node damages the batches of others.
func (s *session) takeDenials(ctx context.Context, tx pgx.Tx) ([]outbox.Entry, error) {
	rows, _ := tx.Query(ctx, takeDenials, maxRead)
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (outbox.Entry, error) {
		e := outbox.Entry{Event: events.Event{Type: events.Denial}}
		var node, data string
		var at pgtype.Timestamptz
		err := row.Scan(&e.Position, &e.AddedAt, &e.ID, &node, &at, &e.Tenant, &data)
		e.Time = at.Time // the zero time where it is infinite, which no CloudEvent has
		e.Source, e.Data = events.NodeSource(node), []byte(data)
		return e, err
	})
	if err != nil {
		return nil, fmt.Errorf("take denials: %w", err)
	}
	all = slices.DeleteFunc(all, func(e outbox.Entry) bool {
		_, err := e.JSON()
		if err != nil {
			s.options.Log.Error("a denial cannot be sent to webhooks", "source", e.Source, "error", err)
		}
		return err != nil
	})
	slices.SortFunc(all, func(a, b outbox.Entry) int { return cmp.Compare(a.Position, b.Position) })
	return all, nil
}

func (q *queueing) load(ctx context.Context, tx pgx.Tx) error {
	rows, _ := tx.Query(ctx, selectHooks)
	all, err := pgx.CollectRows(rows, pgx.RowToAddrOfStructByPos[hook])
	for _, h := range all {
		q.hooks[h.Org] = append(q.hooks[h.Org], h)
	}
	return err
}

// add adds an event to the batches of the webhooks that want it: those of its org, and those of all orgs.
func (q *queueing) add(e *outbox.Entry) {
	orgs := []string{""}
	if e.Tenant != "" {
		orgs = append(orgs, e.Tenant)
	}
	for _, org := range orgs {
		for _, h := range q.hooks[org] {
			if webhook.Wants(org, h.Types, &e.Event) && !e.AddedAt.Before(h.CreatedAt) {
				q.addTo(h, e)
			}
		}
	}
}

func (q *queueing) addTo(h *hook, e *outbox.Entry) {
	event := e.Event
	if h.Org != "" {
		var err error
		if event, err = webhook.ForOrg(event); err != nil {
			q.options.Log.Error("an event cannot be sent to webhooks", "error", err)
			return
		}
	}
	if n := len(h.batch); n > 0 && (n == maxEvents || h.size+len(event.Data) > maxBody ||
		(h.batch[0].Type == events.Denial) != (event.Type == events.Denial)) {
		q.flush(h)
	}
	h.batch, h.size = append(h.batch, event), h.size+len(event.Data)
}

// flushAll makes deliveries of what is left in the batches, and counts what was dropped.
func (q *queueing) flushAll() {
	for _, hooks := range q.hooks {
		for _, h := range hooks {
			q.flush(h)
			if h.dropped > 0 {
				q.batch.Queue(addDropped, h.ID, h.dropped)
				q.dropped += h.dropped
			}
		}
	}
}

// flush makes a delivery of the batch of a webhook, if the queue has room for it.
func (q *queueing) flush(h *hook) {
	n := len(h.batch)
	if n == 0 {
		return
	}
	denials := h.batch[0].Type == events.Denial
	body, err := events.Batch(h.batch)
	h.batch, h.size = h.batch[:0], 0
	switch {
	case err != nil:
		q.options.Log.Error("events cannot be sent to webhooks", "error", err)
		h.dropped += int64(n)
	case h.Waiting >= maxWaiting || denials && h.Waiting >= maxDenials:
		h.dropped += int64(n)
	default:
		h.Waiting++
		q.made++
		q.batch.Queue(insertDelivery, webhook.NewMessageID(), h.ID, n, string(body), q.now, q.made)
	}
}
