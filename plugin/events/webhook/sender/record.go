package sender

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/events"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/events/outbox"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/events/webhook"
)

// States of a delivery that has ended.
const stateDelivered, stateFailed = "delivered", "failed"

// record writes what became of a try, also after ctx has ended.
func (s *session) record(ctx context.Context, o *outcome) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTime)
	defer cancel()
	delete(s.inFlight, o.Webhook)
	if o.Failing {
		s.failing--
	}
	now := s.now()
	gaveUp, disabled := false, ""
	err := pgx.BeginFunc(ctx, s.conn, func(tx pgx.Tx) (err error) {
		if o.fault == "" {
			return s.recordSuccess(ctx, tx, o, now)
		}
		if gaveUp, err = s.recordTry(ctx, tx, o, now); err != nil {
			return err
		}
		disabled, err = s.recordFailure(ctx, tx, o, now)
		return err
	})
	if err != nil {
		return fmt.Errorf("record a delivery to webhook %d: %w", o.Webhook, err)
	}
	s.count(func(now *Stats) {
		switch {
		case o.fault == "":
			now.Delivered++
		case gaveUp:
			now.GivenUp++
			now.Dropped += int64(o.Events)
		default:
			now.Failed++
		}
	})
	if disabled != "" {
		s.options.Log.Error("a webhook was disabled: correct its receiver, and then run ratelimit webhook enable",
			"webhook", o.Webhook, "org", o.Org, "reason", disabled)
	}
	return nil
}

func (*session) recordSuccess(ctx context.Context, tx pgx.Tx, o *outcome, now time.Time) error {
	if _, err := tx.Exec(ctx, endDelivery, o.ID, stateDelivered, o.status, "", now); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, recordSuccess, o.Webhook, now)
	return err
}

// recordTry records a failed try in the delivery, and reports whether that was the last one.
func (s *session) recordTry(ctx context.Context, tx pgx.Tx, o *outcome, now time.Time) (gaveUp bool, err error) {
	if now.Sub(o.CreatedAt) < webhook.KeepTrying {
		due := now.Add(webhook.Backoff(int(o.Tries)+1, s.options.Random()))
		_, err := tx.Exec(ctx, retryDelivery, o.ID, due, o.status, o.fault, now)
		return false, err
	}
	if _, err := tx.Exec(ctx, endDelivery, o.ID, stateFailed, o.status, o.fault, now); err != nil {
		return true, err
	}
	_, err = tx.Exec(ctx, addDropped, o.Webhook, o.Events)
	return true, err
}

// recordFailure records a failed try in the webhook, disables it if it has failed for too long, and returns why.
func (s *session) recordFailure(
	ctx context.Context, tx pgx.Tx, o *outcome, now time.Time,
) (disabled string, err error) {
	hold := now.Add(max(o.retryAfter, webhook.Backoff(int(o.Failures)+1, s.options.Random())))
	var since time.Time
	var failures int64
	rows, _ := tx.Query(ctx, recordFailure, o.Webhook, now, o.fault, hold)
	if _, err := pgx.ForEachRow(rows, []any{&since, &failures}, func() error { return nil }); err != nil {
		return "", err
	}
	switch {
	case failures == 0:
		return "", nil // it was deleted
	case o.status == http.StatusGone:
		disabled = "the receiver answered 410 Gone"
	case now.Sub(since) >= webhook.DisableAfter && failures >= webhook.DisableTries:
		disabled = fmt.Sprintf("all %d tries since %s failed; the last one: %s", failures, since.UTC().Format(time.RFC3339),
			o.fault)
	default:
		return "", nil
	}
	return disabled, disable(ctx, tx, o, disabled, since, now)
}

func disable(ctx context.Context, tx pgx.Tx, o *outcome, reason string, since, now time.Time) error {
	if _, err := tx.Exec(ctx, `SELECT set_config('rate_limiter.actor', 'webhooks', true),
		set_config('rate_limiter.reason', $1, true)`, reason); err != nil {
		return err
	}
	done, err := tx.Exec(ctx, disableHook, o.Webhook, reason)
	if err != nil || done.RowsAffected() == 0 {
		return err
	}
	data, err := json.Marshal(map[string]any{
		"version": 1, "webhook": o.Webhook, "org": o.Org, "url": o.URL, "reason": reason,
		"failing_since": since.UTC().Format(time.RFC3339),
	})
	if err != nil {
		return err
	}
	return outbox.Add(ctx, tx, events.Event{
		ID: o.ID + "-disabled", Source: events.Control, Type: events.WebhookDisabled, Time: now, Tenant: o.Org, Data: data,
	})
}
