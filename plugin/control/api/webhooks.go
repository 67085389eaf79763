package api

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/events/webhook"
)

const (
	webhooksPath        = "/v1/orgs/{org}/ratelimit/webhooks"
	generalWebhooksPath = "/v1/ratelimit/webhooks"
)

func (s *Server) registerWebhooks(p *place, id, of string) {
	const (
		read, post, remove = http.MethodGet, http.MethodPost, http.MethodDelete
		missing, conflict  = http.StatusNotFound, http.StatusConflict
	)
	create := p.operation("create-"+id, post, "", "Create a webhook "+of+", and show its secret once", conflict)
	create.DefaultStatus = http.StatusCreated
	huma.Register(s.api, create, s.createWebhook)
	list(s, p.operation("list-"+id+"s", read, "", "List the webhooks "+of+", ordered by id"), "list webhooks",
		view.webhook,
		func(w rows.Webhook) int64 { return w.ID },
		func(ctx context.Context, in *listWebhooksInput) ([]rows.Webhook, error) {
			org := orgOf(ctx)
			f := rows.WebhookFilter{Org: &org}
			if in.Every && org == "" {
				f.Org = nil
			}
			f.After, f.Max = in.page()
			return s.Rows.Webhooks(ctx, f)
		})
	serveTagged(s, p.operation("get-"+id, read, one, "Get a webhook "+of, missing), "read a webhook",
		func(w rows.Webhook) int64 { return w.Revision }, s.webhookOf)
	huma.Register(s.api, p.operation("delete-"+id, remove, one, "Delete a webhook "+of+", with what waits for it",
		missing, stale), s.deleteWebhook)
	for verb, enabled := range map[string]bool{"enable": true, "disable": false} {
		summary := strings.ToUpper(verb[:1]) + verb[1:] + " a webhook " + of
		serve(s, p.operation(verb+"-"+id, post, one+"/"+verb, summary, missing, stale), "enable or disable a webhook",
			func(ctx context.Context, in *changeWebhookInput[whyBody]) (rows.Webhook, error) {
				return s.setWebhook(ctx, in, enabled)
			})
	}
	serve(s, p.operation("rotate-"+id, post, one+"/rotate", "Give a webhook "+of+" a new secret, and show it once",
		missing, conflict, stale), "rotate the secret of a webhook", s.rotateWebhook)
	serve(s, p.operation("test-"+id, post, one+"/test", "Send a test event to a webhook "+of, missing, conflict, stale),
		"test a webhook", s.testWebhook)
	serve(s, p.operation("list-"+id+"-deliveries", read, one+"/deliveries", "List the last deliveries to a webhook "+of,
		missing), "list deliveries", s.listDeliveries)
}

type listWebhooksInput struct {
	OptionalOrg
	Paging[int64]
}

// webhookOf returns a webhook as a caller reads it. One of another org is not found.
func (s *Server) webhookOf(ctx context.Context, in *RowPath) (rows.Webhook, error) {
	w, err := s.Rows.Webhook(ctx, in.ID)
	if err == nil && !in.includes(ctx, w.Org) {
		err = &rows.NotFoundError{What: fmt.Sprint("webhook ", in.ID)}
	}
	return s.viewOf(callerOf(ctx)).webhook(w), err
}

// webhook returns a webhook as the caller reads it: a token of an org does not learn who made it.
func (v view) webhook(w rows.Webhook) rows.Webhook {
	if v.tenant {
		w.CreatedBy = ""
	}
	return w
}

type webhookBody struct {
	URL    string         `json:"url"              maxLength:"2048" doc:"Where events are posted to: https, without user and fragment, and not a private address." example:"https://example.com/webhooks/limits"`
	Types  []string       `json:"types,omitempty"  maxItems:"16"    doc:"The types of events to send. Absent: all."                                                    example:"[\"io.github.tenant-rate-limiting.quota.threshold\"]"`
	Reason optionalReason `json:"reason,omitempty" maxLength:"1024" doc:"Why; recorded in the audit. Default: changed by the API."`
}

type createWebhookInput struct {
	OptionalOrg
	DryRun
	Body webhookBody
}

type createWebhookOutput struct {
	Location string `header:"Location" doc:"Where the webhook is."`
	Body     answers.WebhookSecret
}

func (s *Server) createWebhook(ctx context.Context, in *createWebhookInput) (*createWebhookOutput, error) {
	n := rows.NewWebhook{Org: orgOf(ctx), URL: in.Body.URL, Types: in.Body.Types}
	if faults := n.Faults(&s.Webhooks); len(faults) > 0 {
		return nil, unprocessable(mapped(faults, func(f *rows.InvalidError) *huma.ErrorDetail {
			return fault("body."+f.Field, f.Problem, nil)
		})...)
	}
	secret, w, err := s.Rows.CreateWebhook(ctx, newChange(ctx, in.Body.Reason), n)
	if err != nil {
		return nil, s.writeError("create a webhook", err)
	}
	at := generalWebhooksPath + "/"
	if n.Org != "" {
		at = fmt.Sprintf("/v1/orgs/%s/ratelimit/webhooks/", answers.PathSegment(n.Org))
	}
	return &createWebhookOutput{at + strconv.FormatInt(w.ID, 10), s.showSecret(ctx, w, secret)}, nil
}

func (s *Server) showSecret(ctx context.Context, w rows.Webhook, secret webhook.Secret) answers.WebhookSecret {
	return answers.WebhookSecret{Webhook: s.viewOf(callerOf(ctx)).webhook(w), Secret: secret.Text()}
}

type deleteWebhookInput struct {
	RowPath
	Match
	DryRun
	Reason
}

func (s *Server) deleteWebhook(ctx context.Context, in *deleteWebhookInput) (*struct{}, error) {
	_, err := s.webhookOf(ctx, &in.RowPath)
	if err == nil {
		err = s.Rows.DeleteWebhook(ctx, newChange(ctx, in.Reason.Reason), in.ID)
	}
	return nil, s.writeError("delete a webhook", err)
}

type whyBody struct {
	Reason optionalReason `json:"reason,omitempty" maxLength:"1024" doc:"Why; recorded in the audit. Default: changed by the API."`
}

type changeWebhookInput[B any] struct {
	RowPath
	Match
	Body B
}

func (s *Server) setWebhook(ctx context.Context, in *changeWebhookInput[whyBody], enabled bool) (rows.Webhook, error) {
	w, err := s.webhookOf(ctx, &in.RowPath)
	if err == nil {
		w, err = s.Rows.EnableWebhook(ctx, newChange(ctx, in.Body.Reason), in.ID, enabled)
	}
	return s.viewOf(callerOf(ctx)).webhook(w), err
}

type rotateBody struct {
	Reason optionalReason `json:"reason,omitempty" maxLength:"1024" doc:"Why; recorded in the audit. Default: changed by the API."`
	Now    bool           `json:"now,omitempty"    doc:"End the old secrets at once, instead of letting them sign too for 24 hours. Deliveries fail until the receiver has the new one."`
}

func (s *Server) rotateWebhook(ctx context.Context, in *changeWebhookInput[rotateBody]) (answers.WebhookSecret, error) {
	w, err := s.webhookOf(ctx, &in.RowPath)
	var secret webhook.Secret
	if err == nil {
		secret, w, err = s.Rows.RotateWebhook(ctx, newChange(ctx, in.Body.Reason), in.ID, in.Body.Now)
	}
	return s.showSecret(ctx, w, secret), err
}

func (s *Server) testWebhook(ctx context.Context, in *changeWebhookInput[whyBody]) (rows.Delivery, error) {
	if _, err := s.webhookOf(ctx, &in.RowPath); err != nil {
		return rows.Delivery{}, err
	}
	return s.Rows.TestWebhook(ctx, newChange(ctx, in.Body.Reason), in.ID)
}

// DeliveryQuery selects deliveries.
type DeliveryQuery struct {
	Limit int    `query:"limit" minimum:"1" maximum:"1000" default:"100" doc:"The maximum number of items."`
	State string `query:"state"                                           doc:"Only deliveries in this state." enum:"waiting,delivered,failed"`
}

type listDeliveriesInput struct {
	RowPath
	DeliveryQuery
}

func (s *Server) listDeliveries(ctx context.Context, in *listDeliveriesInput) (answers.Deliveries, error) {
	if _, err := s.webhookOf(ctx, &in.RowPath); err != nil {
		return answers.Deliveries{}, err
	}
	list, err := s.Rows.Deliveries(ctx, in.ID, in.State, in.Limit)
	return answers.Deliveries{Items: list}, err
}
