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

// webhookRoutes are the two places of webhooks: those of one org, and those of all orgs.
var webhookRoutes = []struct {
	base, prefix string // of the path, and of the ids of operations
	of           string
	reads        access
	writes       access
	parameters   func() []*huma.Param // each server changes its own
}{
	{generalWebhooksPath, "general-webhook", "of all orgs", readAccess, writeAccess, func() []*huma.Param { return nil }},
	{webhooksPath, "webhook", "of an org", orgAccess, ownAccess, func() []*huma.Param {
		return []*huma.Param{{
			Name: "org", In: "path", Required: true, Example: "acme",
			Description: "The org, as requests identify it, with slashes percent-encoded.",
			Schema:      &huma.Schema{Type: huma.TypeString, MinLength: new(1), MaxLength: new(maxName)},
		}}
	}},
}

// registerWebhooks adds the operations on webhooks.
func (s *Server) registerWebhooks() {
	for _, at := range webhookRoutes {
		define := func(verb, method, path, summary string, needs access, codes ...int) huma.Operation {
			id := verb + "-" + at.prefix
			if verb == "list" {
				id += "s"
			}
			return operation(huma.Operation{
				OperationID: id, Method: method, Path: at.base + path, Tags: []string{"webhooks"},
				Summary: fmt.Sprintf(summary, at.of), Parameters: at.parameters(), Errors: codes,
			}, needs)
		}
		const one = "/{id}"
		create := define("create", http.MethodPost, "", "Create a webhook %s, and show its secret once", at.writes,
			http.StatusConflict)
		create.DefaultStatus = http.StatusCreated
		huma.Register(s.api, create, s.createWebhook)
		huma.Register(s.api, define("list", http.MethodGet, "", "List the webhooks %s, ordered by id", at.reads),
			s.listWebhooks)
		huma.Register(s.api, define("get", http.MethodGet, one, "Get a webhook %s", at.reads, http.StatusNotFound),
			s.getWebhook)
		huma.Register(s.api, define("delete", http.MethodDelete, one, "Delete a webhook %s, with what waits for it",
			at.writes, http.StatusNotFound), s.deleteWebhook)
		huma.Register(s.api, define("enable", http.MethodPost, one+"/enable", "Enable a webhook %s", at.writes,
			http.StatusNotFound), s.enableWebhook)
		huma.Register(s.api, define("disable", http.MethodPost, one+"/disable", "Disable a webhook %s", at.writes,
			http.StatusNotFound), s.disableWebhook)
		huma.Register(s.api, define("rotate", http.MethodPost, one+"/rotate",
			"Give a webhook %s a new secret, and show it once", at.writes, http.StatusNotFound, http.StatusConflict),
			s.rotateWebhook)
		huma.Register(s.api, define("test", http.MethodPost, one+"/test", "Send a test event to a webhook %s", at.writes,
			http.StatusNotFound, http.StatusConflict), s.testWebhook)
		deliveries := define("list", http.MethodGet, one+"/deliveries", "List the last deliveries to a webhook %s",
			at.reads, http.StatusNotFound)
		deliveries.OperationID = "list-" + at.prefix + "-deliveries"
		huma.Register(s.api, deliveries, s.listDeliveries)
	}
}

// OptionalOrg is the org of a path that has one. Its operations describe the parameter.
type OptionalOrg struct{ org string }

// Resolve implements [huma.Resolver].
func (o *OptionalOrg) Resolve(ctx huma.Context) []error {
	if !strings.Contains(ctx.Operation().Path, "{org}") {
		return nil
	}
	o.org = ctx.Param("org")
	return (&OrgPath{o.org}).Resolve(ctx)
}

// WebhookID is the id of a webhook in a path.
type WebhookID struct {
	ID int64 `path:"id" minimum:"1" example:"7"`
}

// WebhookPath names a webhook.
type WebhookPath struct {
	OptionalOrg
	WebhookID
}

// webhookOf returns a webhook as a caller reads it. One of another org is not found.
func (s *Server) webhookOf(ctx context.Context, in *WebhookPath) (rows.Webhook, error) {
	w, err := s.Rows.Webhook(ctx, in.ID)
	if err == nil && w.Org != in.org {
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

type listWebhooksInput struct {
	OptionalOrg
	Paging
}

type listWebhooksOutput struct{ Body answers.Page[rows.Webhook] }

func (s *Server) listWebhooks(ctx context.Context, in *listWebhooksInput) (*listWebhooksOutput, error) {
	list, err := s.Rows.Webhooks(ctx, rows.WebhookFilter{Org: &in.org, After: in.afterID(), Max: in.Limit + 1})
	if err != nil {
		return nil, s.readError("list webhooks", err)
	}
	for i := range list {
		list[i] = s.viewOf(callerOf(ctx)).webhook(list[i])
	}
	return &listWebhooksOutput{newPage(list, in.Limit, func(w rows.Webhook) int64 { return w.ID })}, nil
}

type webhookOutput struct{ Body rows.Webhook }

func (s *Server) getWebhook(ctx context.Context, in *WebhookPath) (*webhookOutput, error) {
	w, err := s.webhookOf(ctx, in)
	return &webhookOutput{w}, s.readError("read a webhook", err)
}

// webhookBody is a webhook as a caller writes it.
type webhookBody struct {
	URL    string   `json:"url"              maxLength:"2048" doc:"Where events are posted to: https, without user and fragment, and not a private address." example:"https://example.com/webhooks/limits"`
	Types  []string `json:"types,omitempty"  maxItems:"16"    doc:"The types of events to send. Absent: all."                                                    example:"[\"io.github.tenant-rate-limiting.quota.threshold\"]"`
	Reason string   `json:"reason,omitempty" maxLength:"1024" doc:"Why; recorded in the audit. Default: changed by the API."`
}

// Resolve implements [huma.Resolver].
func (b *webhookBody) Resolve(huma.Context) []error {
	return notTexts("body", textField{"url", b.URL}, textField{"reason", b.Reason})
}

type createWebhookInput struct {
	OptionalOrg
	Body webhookBody
}

type createWebhookOutput struct {
	Location string `header:"Location" doc:"Where the webhook is."`
	Body     answers.WebhookSecret
}

func (s *Server) createWebhook(ctx context.Context, in *createWebhookInput) (*createWebhookOutput, error) {
	n := rows.NewWebhook{Org: in.org, URL: in.Body.URL, Types: in.Body.Types}
	if faults := n.Faults(&s.Webhooks); len(faults) > 0 {
		details := make([]*huma.ErrorDetail, len(faults))
		for i, f := range faults {
			details[i] = fault("body."+f.Field, f.Problem, nil)
		}
		return nil, unprocessable(details...)
	}
	secret, w, err := s.Rows.CreateWebhook(ctx, newChange(ctx, in.Body.Reason), n)
	if err != nil {
		return nil, s.writeError("create a webhook", err)
	}
	at := generalWebhooksPath + "/"
	if in.org != "" {
		at = fmt.Sprintf("/v1/orgs/%s/ratelimit/webhooks/", pathSegment(in.org))
	}
	return &createWebhookOutput{at + strconv.FormatInt(w.ID, 10), s.showSecret(ctx, w, secret)}, nil
}

// showSecret returns a webhook with its secret, and counts the write.
func (s *Server) showSecret(ctx context.Context, w rows.Webhook, secret webhook.Secret) answers.WebhookSecret {
	s.metrics.writes.WithLabelValues(webhookWrites).Inc()
	return answers.WebhookSecret{Webhook: s.viewOf(callerOf(ctx)).webhook(w), Secret: secret.Text()}
}

type deleteWebhookInput struct {
	WebhookPath
	Reason
}

// Resolve implements [huma.Resolver], which would otherwise find that of the reason only.
func (in *deleteWebhookInput) Resolve(ctx huma.Context) []error {
	return append(in.OptionalOrg.Resolve(ctx), in.Reason.Resolve(ctx)...)
}

func (s *Server) deleteWebhook(ctx context.Context, in *deleteWebhookInput) (*struct{}, error) {
	_, err := s.webhookOf(ctx, &in.WebhookPath)
	if err == nil {
		err = s.Rows.DeleteWebhook(ctx, newChange(ctx, in.Reason.Reason), in.ID)
	}
	if err == nil {
		s.metrics.writes.WithLabelValues(webhookWrites).Inc()
	}
	return nil, s.writeError("delete a webhook", err)
}

// whyBody has the reason of a change.
type whyBody struct {
	Reason string `json:"reason,omitempty" maxLength:"1024" doc:"Why; recorded in the audit. Default: changed by the API."`
}

// Resolve implements [huma.Resolver].
func (b *whyBody) Resolve(huma.Context) []error {
	return notTexts("body", textField{"reason", b.Reason})
}

type changeWebhookInput struct {
	WebhookPath
	Body whyBody
}

func (s *Server) enableWebhook(ctx context.Context, in *changeWebhookInput) (*webhookOutput, error) {
	return s.setWebhook(ctx, in, true)
}

func (s *Server) disableWebhook(ctx context.Context, in *changeWebhookInput) (*webhookOutput, error) {
	return s.setWebhook(ctx, in, false)
}

// setWebhook enables or disables a webhook.
func (s *Server) setWebhook(ctx context.Context, in *changeWebhookInput, enabled bool) (*webhookOutput, error) {
	w, err := s.webhookOf(ctx, &in.WebhookPath)
	if err == nil {
		w, err = s.Rows.EnableWebhook(ctx, newChange(ctx, in.Body.Reason), in.ID, enabled)
	}
	if err != nil {
		return nil, s.writeError("enable or disable a webhook", err)
	}
	s.metrics.writes.WithLabelValues(webhookWrites).Inc()
	return &webhookOutput{s.viewOf(callerOf(ctx)).webhook(w)}, nil
}

// rotateBody says how a secret is rotated.
type rotateBody struct {
	Reason string `json:"reason,omitempty" maxLength:"1024" doc:"Why; recorded in the audit. Default: changed by the API."`
	Now    bool   `json:"now,omitempty"    doc:"End the old secrets at once, instead of letting them sign too for 24 hours. Deliveries fail until the receiver has the new one."`
}

// Resolve implements [huma.Resolver].
func (b *rotateBody) Resolve(huma.Context) []error {
	return notTexts("body", textField{"reason", b.Reason})
}

type rotateWebhookInput struct {
	WebhookPath
	Body rotateBody
}

type rotateWebhookOutput struct{ Body answers.WebhookSecret }

func (s *Server) rotateWebhook(ctx context.Context, in *rotateWebhookInput) (*rotateWebhookOutput, error) {
	const action = "rotate the secret of a webhook"
	if _, err := s.webhookOf(ctx, &in.WebhookPath); err != nil {
		return nil, s.writeError(action, err)
	}
	secret, w, err := s.Rows.RotateWebhook(ctx, newChange(ctx, in.Body.Reason), in.ID, in.Body.Now)
	if err != nil {
		return nil, s.writeError(action, err)
	}
	return &rotateWebhookOutput{s.showSecret(ctx, w, secret)}, nil
}

type deliveryOutput struct{ Body rows.Delivery }

func (s *Server) testWebhook(ctx context.Context, in *changeWebhookInput) (*deliveryOutput, error) {
	_, err := s.webhookOf(ctx, &in.WebhookPath)
	var d rows.Delivery
	if err == nil {
		d, err = s.Rows.TestWebhook(ctx, newChange(ctx, in.Body.Reason), in.ID)
	}
	return &deliveryOutput{d}, s.writeError("test a webhook", err)
}

type listDeliveriesInput struct {
	WebhookPath
	Limit int    `query:"limit" minimum:"1" maximum:"1000" default:"100" doc:"The maximum number of items."`
	State string `query:"state"                                           doc:"Only deliveries in this state." enum:"waiting,delivered,failed"`
}

type listDeliveriesOutput struct{ Body answers.Deliveries }

func (s *Server) listDeliveries(ctx context.Context, in *listDeliveriesInput) (*listDeliveriesOutput, error) {
	_, err := s.webhookOf(ctx, &in.WebhookPath)
	var list []rows.Delivery
	if err == nil {
		list, err = s.Rows.Deliveries(ctx, in.ID, in.State, in.Limit)
	}
	return &listDeliveriesOutput{answers.Deliveries{Items: list}}, s.readError("list deliveries", err)
}
