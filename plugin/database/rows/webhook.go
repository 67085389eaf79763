package rows

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/events"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/events/webhook"
)

// MaxWebhooks bounds the webhooks of an org, and those of all orgs.
const MaxWebhooks = 10

// MaxWebhookTests bounds the tests of a webhook within an hour: each is kept for a week.
const MaxWebhookTests = 30

// maxSecrets bounds the secrets of a webhook: the current one, and those of rotations in the last day.
const maxSecrets = 4

// Webhook sends events to a URL. The leader of `ratelimit serve` does it.
type Webhook struct {
	ID        int64     `json:"id"`
	Org       string    `json:"org,omitempty" doc:"Only events about this org are sent, as it may read them. Absent: all events."`
	URL       string    `json:"url"`
	Types     []string  `json:"types"         doc:"The types of events that are sent. Empty: all."                              nullable:"false"`
	Enabled   bool      `json:"enabled"`
	CreatedAt time.Time `json:"created_at"`
	CreatedBy string    `json:"created_by,omitempty" doc:"Absent for the token of an org."`

	DisabledFor  string    `json:"disabled_reason,omitempty" doc:"Why it was disabled, if no operator has done it."`
	FailingSince time.Time `json:"failing_since,omitzero"    doc:"All tries since then have failed. Absent: the last one has not."`
	Failures     int64     `json:"failures"                  doc:"Tries since then."`
	LastError    string    `json:"last_error,omitempty"      doc:"Why the last try failed."`
	DeliveredAt  time.Time `json:"delivered_at,omitzero"     doc:"The last success."`
	Waiting      int64     `json:"waiting"                   doc:"Deliveries that wait for their first or next try."`
	Dropped      int64     `json:"dropped"                   doc:"Events that did not fit its queue, or were given up."`
	RotatedUntil time.Time `json:"old_secret_until,omitzero" doc:"Until then deliveries are also signed by the secret before the last rotation."`
	Revision     int64     `json:"revision"                  doc:"Counts the changes of its settings and secrets, as its ETag has it."`
}

// NewWebhook describes a webhook to create.
type NewWebhook struct {
	Org   string // "": of all orgs
	URL   string
	Types []string // empty: all
}

// WebhookFilter selects webhooks.
type WebhookFilter struct {
	Org *string // only those of this org, or with "" those of all orgs; nil: any

	After int64 // only webhooks with a larger ID: the last one of the page before
	Max   int   // at most so many; 0: all
}

// Faults returns what is wrong with a webhook that calls the given targets, as errors of its fields.
func (n *NewWebhook) Faults(targets *webhook.Targets) (faults []*InvalidError) {
	if err := targets.CheckURL(n.URL); err != nil {
		faults = append(faults, &InvalidError{Field: "url", Problem: err.Error()})
	}
	all := webhook.Types()
	for _, name := range n.Types {
		if !slices.Contains(all, events.Type(name)) {
			faults = append(faults, &InvalidError{Field: "types", Problem: fmt.Sprintf("must be of %q, not %q", all, name)})
		}
	}
	if len(n.Types) > len(all) {
		faults = append(faults, &InvalidError{Field: "types", Problem: fmt.Sprintf("must have at most %d types", len(all))})
	}
	return faults
}

const zeroTime = `'0001-01-01 00:00:00+00'::timestamptz`

const selectWebhooks = `SELECT w.id, w.org, w.url, w.types, w.enabled, w.created_at, w.created_by, w.disabled_for,
		coalesce(w.failing_since, ` + zeroTime + `) AS failing_since, w.failures, w.last_error,
		coalesce(w.delivered_at, ` + zeroTime + `) AS delivered_at, w.dropped,
		(SELECT count(*) FROM rate_limiter.webhook_deliveries d WHERE d.webhook = w.id AND d.state = 'waiting') AS waiting,
		coalesce((SELECT max(s.signs_until) FROM rate_limiter.webhook_secrets s
			WHERE s.webhook = w.id AND s.signs_until > clock_timestamp()), ` + zeroTime + `) AS rotated_until,
		(SELECT count(*) FROM rate_limiter.audit a WHERE a.kind = 'webhook' AND a.key = w.id::text) AS revision
	FROM rate_limiter.webhooks w`

// CreateWebhook creates a webhook and returns its secret, which cannot be read again. An org has at most MaxWebhooks;
// more are a ConflictError. c.Idempotency is ignored, because a replay could not return the secret.
func (s *DB) CreateWebhook(ctx context.Context, c Change, n NewWebhook) (webhook.Secret, Webhook, error) {
	c.Idempotency = nil
	secret := webhook.NewSecret()
	if n.Types == nil {
		n.Types = []string{}
	}
	w, _, err := write(ctx, s, "create a webhook", c, func(tx pgx.Tx) (w Webhook, err error) {
		var count int
		err = tx.QueryRow(ctx, `SELECT count(*) FROM rate_limiter.webhooks WHERE org = $1`, n.Org).Scan(&count)
		if err == nil && count >= MaxWebhooks {
			err = &ConflictError{
				What: "webhooks", Problem: fmt.Sprintf("there are %d already, which is the most: delete one", count),
			}
		}
		var id int64
		if err == nil {
			err = tx.QueryRow(ctx, `INSERT INTO rate_limiter.webhooks (org, url, types, created_by) VALUES ($1, $2, $3, $4)
				RETURNING id`, n.Org, webhook.NormalURL(n.URL), n.Types, c.Actor).Scan(&id)
		}
		if err == nil {
			err = addSecret(ctx, tx, id, secret)
		}
		if err != nil {
			return w, err
		}
		return oneWebhook(ctx, tx, id)
	})
	return secret, w, err
}

func addSecret(ctx context.Context, tx pgx.Tx, id int64, secret webhook.Secret) error {
	const insert = `INSERT INTO rate_limiter.webhook_secrets (webhook, secret) VALUES ($1, $2)`
	_, err := tx.Exec(ctx, insert, id, []byte(secret))
	return err
}

func oneWebhook(ctx context.Context, q querier, id int64) (Webhook, error) {
	return one[Webhook](ctx, q, fmt.Sprint("webhook ", id), selectWebhooks+` WHERE w.id = $1`, id)
}

// webhookToChange returns the webhook of a write, unless the change is of another revision.
func webhookToChange(ctx context.Context, tx pgx.Tx, c Change, id int64) (Webhook, error) {
	w, err := oneWebhook(ctx, tx, id)
	if err == nil {
		err = c.accept(w.Revision)
	}
	return w, err
}

// Webhook returns a webhook, or a NotFoundError.
func (s *DB) Webhook(ctx context.Context, id int64) (Webhook, error) {
	w, err := oneWebhook(ctx, s.pool, id)
	return w, fail("read a webhook", err)
}

// Webhooks returns the webhooks that a filter selects, in the order of their IDs.
func (s *DB) Webhooks(ctx context.Context, f WebhookFilter) ([]Webhook, error) {
	var w where
	if f.Org != nil {
		w.add("w.org = %s", *f.Org)
	}
	given(&w, "w.id > %s", f.After)
	return readAll[Webhook](ctx, s.pool, "list webhooks",
		selectWebhooks+w.String()+" ORDER BY w.id"+limitTo(f.Max), w.args...)
}

// DeleteWebhook deletes a webhook with its secrets and deliveries, or returns a NotFoundError.
func (s *DB) DeleteWebhook(ctx context.Context, c Change, id int64) error {
	_, _, err := write(ctx, s, "delete a webhook", c, func(tx pgx.Tx) (none noResult, err error) {
		if _, err = webhookToChange(ctx, tx, c, id); err == nil {
			_, err = tx.Exec(ctx, `DELETE FROM rate_limiter.webhooks WHERE id = $1`, id)
		}
		return none, err
	})
	return err
}

// EnableWebhook enables a webhook, which forgets its failures, or disables it. What waits for a disabled webhook is
// delivered when it is enabled in time; new events are not kept for it.
func (s *DB) EnableWebhook(ctx context.Context, c Change, id int64, enabled bool) (Webhook, error) {
	w, _, err := write(ctx, s, "enable or disable a webhook", c, func(tx pgx.Tx) (Webhook, error) {
		w, err := webhookToChange(ctx, tx, c, id)
		if err == nil {
			_, err = tx.Exec(ctx, `UPDATE rate_limiter.webhooks SET enabled = $2, disabled_for = '', failing_since = NULL,
				failures = 0, hold_until = NULL WHERE id = $1 AND enabled <> $2`, id, enabled)
		}
		if err != nil {
			return w, err
		}
		return oneWebhook(ctx, tx, id)
	})
	return w, err
}

// RotateWebhook gives a webhook a new secret and returns it. The old one signs too for [webhook.OldSecretSigns], or
// with now not any more. Too many rotations within that time are a ConflictError.
func (s *DB) RotateWebhook(ctx context.Context, c Change, id int64, now bool) (webhook.Secret, Webhook, error) {
	c.Idempotency = nil // as in CreateWebhook
	secret, signs := webhook.NewSecret(), webhook.OldSecretSigns
	if now {
		signs = 0
	}
	w, _, err := write(ctx, s, "rotate the secret of a webhook", c, func(tx pgx.Tx) (w Webhook, err error) {
		if w, err = webhookToChange(ctx, tx, c, id); err != nil {
			return w, err
		}
		var count int
		err = tx.QueryRow(ctx, `WITH ended AS (
				UPDATE rate_limiter.webhook_secrets
				SET signs_until = least(signs_until, clock_timestamp() + $2::interval) WHERE webhook = $1
				RETURNING signs_until
			) SELECT count(*) FROM ended WHERE signs_until > clock_timestamp()`, id, signs).Scan(&count)
		if err == nil && count >= maxSecrets {
			err = &ConflictError{What: fmt.Sprint("webhook ", id), Problem: fmt.Sprintf(
				"it has %d secrets of rotations in the last day: wait, or end these at once", count)}
		}
		if err == nil {
			err = addSecret(ctx, tx, id, secret)
		}
		if err != nil {
			return w, err
		}
		return oneWebhook(ctx, tx, id)
	})
	return secret, w, err
}

// TestWebhook adds a delivery with a test event, which the leader of `ratelimit serve` sends soon, also if it waits
// after a failure. A disabled webhook, and more than MaxWebhookTests within an hour, are a ConflictError.
func (s *DB) TestWebhook(ctx context.Context, c Change, id int64) (Delivery, error) {
	d, _, err := write(ctx, s, "test a webhook", c, func(tx pgx.Tx) (d Delivery, err error) {
		w, err := webhookToChange(ctx, tx, c, id)
		if err == nil {
			err = w.mayTest(ctx, tx)
		}
		if err != nil {
			return d, err
		}
		message := webhook.NewTestID()
		body, err := events.Batch([]events.Event{{
			ID: message, Source: events.Control, Type: events.WebhookTest, Time: time.Now(), Tenant: w.Org,
			Data: fmt.Appendf(nil, `{"version":1,"webhook":%d}`, id),
		}})
		if err == nil {
			_, err = tx.Exec(ctx, `UPDATE rate_limiter.webhooks SET hold_until = NULL WHERE id = $1`, id)
		}
		if err == nil {
			_, err = tx.Exec(ctx, `INSERT INTO rate_limiter.webhook_deliveries (id, webhook, events, body, created_at, due_at)
				VALUES ($1, $2, 1, $3, clock_timestamp(), clock_timestamp())`, message, id, string(body))
		}
		if err != nil {
			return d, err
		}
		return one[Delivery](ctx, tx, "delivery "+message, selectDeliveries+` WHERE id = $1`, message)
	})
	return d, err
}

// mayTest returns a ConflictError if the webhook cannot be tested now.
func (w *Webhook) mayTest(ctx context.Context, tx pgx.Tx) error {
	what := fmt.Sprint("webhook ", w.ID)
	if !w.Enabled {
		return &ConflictError{What: what, Problem: "it is disabled: enable it first"}
	}
	var tests int
	err := tx.QueryRow(ctx, `SELECT count(*) FROM rate_limiter.webhook_deliveries
		WHERE webhook = $1 AND created_at > clock_timestamp() - interval '1 hour' AND starts_with(id, $2)`,
		w.ID, webhook.TestPrefix).Scan(&tests)
	if err == nil && tests >= MaxWebhookTests {
		err = &ConflictError{What: what, Problem: fmt.Sprintf(
			"it was tested %d times within an hour, which is the most: wait", tests)}
	}
	return err
}

// Delivery is a message with events to a webhook, with what became of it. It is kept for a week.
type Delivery struct {
	ID        string    `json:"id"               doc:"The header webhook-id, the same for all tries."`
	Webhook   int64     `json:"webhook"`
	Events    int32     `json:"events"           doc:"How many events it has."`
	State     string    `json:"state"            doc:"waiting: for its first or next try; failed: it was given up." enum:"waiting,delivered,failed"`
	CreatedAt time.Time `json:"created_at"`
	Tries     int32     `json:"tries"`
	TriedAt   time.Time `json:"tried_at,omitzero" doc:"The last try."`
	DueAt     time.Time `json:"due_at,omitzero"  doc:"The next try. Present while it waits."`
	Status    int32     `json:"status,omitempty" doc:"Of the answer to the last try. Absent: there was none."`
	Error     string    `json:"error,omitempty"  doc:"Why the last try failed."`
}

const selectDeliveries = `SELECT id, webhook, events, state, created_at, tries,
		coalesce(tried_at, ` + zeroTime + `) AS tried_at,
		CASE state WHEN 'waiting' THEN due_at ELSE ` + zeroTime + ` END AS due_at, status, error
	FROM rate_limiter.webhook_deliveries`

// Deliveries returns the last deliveries to a webhook, at most so many, newest first. state "" selects all.
func (s *DB) Deliveries(ctx context.Context, id int64, state string, most int) ([]Delivery, error) {
	var w where
	w.add("webhook = %s", id)
	w.equal("state", state)
	return readAll[Delivery](ctx, s.pool, "list deliveries",
		selectDeliveries+w.String()+" ORDER BY created_at DESC, id"+limitTo(most), w.args...)
}
