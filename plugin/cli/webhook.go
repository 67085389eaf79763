package cli

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/events/webhook"
)

var webhookCommands = []*command{
	{
		words: "webhook create", args: "URL", brief: "send events to a URL, and print their signing secret once",
		about: `One process of ratelimit serve sends the events, in batches, as docs/webhooks.md describes. The receiver needs
the secret to verify them. Only the secret is written to standard output.

  ratelimit webhook create https://example.com/limits --tenant acme --reason "they asked"
  ratelimit webhook create https://ops.example.com/limits --all-tenants --type policy.updated --reason "audit"`,
		define: func(c *call) action {
			n := c.webhookFlags()
			return c.changes(func(ctx context.Context, rest *answers.Client) error {
				create := post(webhooksOf(n.Org), object{"url": n.URL, "types": listed(n.Types)})
				if err := new(webhook.Targets).CheckURL(n.URL); err != nil && c.door.server == "" {
					c.warn("without further flags ratelimit serve does not call this URL: it %v", err)
				}
				return c.showWebhook(ctx, rest, "created", create)
			})
		},
	},
	{
		words: "webhook list", brief: "list webhooks, with their state",
		define: func(c *call) action {
			tenant := c.flags.String("tenant", "", "only webhooks of this `tenant`")
			p := c.listFlags(struct{}{})
			return c.asks(func(ctx context.Context, rest *answers.Client) error {
				if *tenant == "" {
					p.query.Set("every", "true")
				}
				return showRows(c, each[rows.Webhook](ctx, rest, webhooksOf(*tenant), p))
			})
		},
	},
	{
		words: "webhook get", args: "ID", brief: "show a webhook",
		define: func(c *call) action {
			c.idArgument()
			return gets[rows.Webhook](webhookPath + every)(c)
		},
	},
	{
		words: "webhook delete", args: "ID", brief: "delete a webhook, with what waits for it",
		define: func(c *call) action {
			id, query := c.idArgument(), c.revisionFlag(url.Values{})
			return c.changes(func(ctx context.Context, rest *answers.Client) error {
				remove := change{method: http.MethodDelete, path: c.path(webhookPath + every), query: query}
				_, err := c.send(ctx, rest, remove, &struct{}{})
				if err != nil {
					return err
				}
				return c.print(map[string]int64{"deleted": *id}, func(out *page) { out.line("deleted webhook %d", *id) })
			})
		},
	},
	{
		words: "webhook rotate", args: "ID", brief: "give a webhook a new secret, and print it once",
		about: `For 24 hours deliveries are signed by the old secret too, so the receiver can change it meanwhile.`,
		define: func(c *call) action {
			c.idArgument()
			query := c.revisionFlag(url.Values{})
			now := c.flags.Bool("now", false, "end the old secrets at once, because they leaked")
			return c.changes(func(ctx context.Context, rest *answers.Client) error {
				rotate := post(c.path(webhookPath+"/rotate"+every), object{"now": *now})
				rotate.query = query
				return c.showWebhook(ctx, rest, "rotated the secret of", rotate)
			})
		},
	},
	webhookSwitch("enable", "send events to a webhook again, after it was disabled"),
	webhookSwitch("disable", "send no more events to a webhook; what waits for it is kept for 3 days"),
	{
		words: "webhook test", args: "ID", brief: "send a test event to a webhook",
		about: `ratelimit serve sends it within a second. ratelimit webhook deliveries shows the result.`,
		define: func(c *call) action {
			c.idArgument()
			test := func() change { return post(c.path(webhookPath+"/test"+every), object{}) }
			return sends(c, test, func(d rows.Delivery) string { return "delivery " + d.ID + " waits to be sent" })
		},
	},
	{
		words: "webhook deliveries", args: "ID", brief: "list the last deliveries to a webhook, newest first",
		define: func(c *call) action {
			c.idArgument()
			return showsItems[rows.Delivery](c, webhookPath+"/deliveries"+every, c.queryFlags(api.DeliveryQuery{}))
		},
	},
}

const webhookPath = "/v1/ratelimit/webhooks/{}"

// webhooksOf returns the path of the webhooks of a tenant, or with "" of those of all tenants.
func webhooksOf(tenant string) string {
	if tenant == "" {
		return "/v1/ratelimit/webhooks"
	}
	return "/v1/orgs/" + answers.PathSegment(tenant) + "/ratelimit/webhooks"
}

func webhookSwitch(verb, brief string) *command {
	return &command{
		words: "webhook " + verb, args: "ID", brief: brief,
		define: func(c *call) action {
			c.idArgument()
			query := c.revisionFlag(url.Values{})
			set := func() change {
				r := post(c.path(webhookPath+"/"+verb+every), object{})
				r.query = query
				return r
			}
			return sends(c, set, func(w rows.Webhook) string { return fmt.Sprintf("%sd webhook %d", verb, w.ID) })
		},
	}
}

// idArgument returns the id that is the only argument.
func (c *call) idArgument() *int64 {
	id := new(int64)
	c.check(func() error {
		if err := parseCount(c.arg(), id); err != nil {
			return wrong("%q is not an id: it %v", c.arg(), err)
		}
		return nil
	})
	return id
}

// anywhere are the targets that a webhook may have here: the flags of ratelimit serve set what it calls.
var anywhere = webhook.Targets{
	HTTP:    true,
	Private: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")},
}

// typePrefix begins the types of events, which a flag may leave out.
const typePrefix = "io.github.tenant-rate-limiting."

func (c *call) webhookFlags() *rows.NewWebhook {
	n := new(rows.NewWebhook)
	c.flags.StringVar(&n.Org, "tenant", "", "the `tenant`: only events about it, as it may read them")
	all := c.flags.Bool("all-tenants", false, "all events, for operators")
	var names []string
	for _, t := range webhook.Types() {
		names = append(names, strings.TrimPrefix(string(t), typePrefix))
	}
	c.flags.Func("type", "only events of this `type`, can be repeated: "+strings.Join(names, ", ")+" (default: all)",
		func(text string) error {
			n.Types = append(n.Types, typePrefix+strings.TrimPrefix(text, typePrefix))
			return nil
		})
	c.check(func() error {
		if (n.Org == "") == !*all {
			return wrong("give either --tenant or --all-tenants")
		}
		n.URL = c.arg()
		for _, f := range n.Faults(&anywhere) {
			name := map[string]string{"url": "URL", "types": "--type"}[f.Field]
			return wrong("%s: %s", name, f.Problem)
		}
		return nil
	})
	return n
}

// showWebhook sends a change of a webhook, and shows its secret.
func (c *call) showWebhook(ctx context.Context, rest *answers.Client, done string, r change) error {
	var made answers.WebhookSecret
	if _, err := c.send(ctx, rest, r, &made); err != nil {
		return err
	}
	w, scope := made.Webhook, "all tenants"
	if w.Org != "" {
		scope = "tenant " + w.Org
	}
	shown := struct {
		Secret  string       `json:"secret"`
		Webhook rows.Webhook `json:"webhook"`
	}{made.Secret, w}
	return c.showSecret(shown, made.Secret, fmt.Sprintf("%s webhook %d (%s)", done, w.ID, scope),
		fmt.Sprintf("webhook rotate %d --now", w.ID))
}

// showSecret shows what was made, whose secret stands alone on standard output as text. If it cannot be written, the
// error says which command to run.
func (c *call) showSecret(made any, secret, what, undo string) error {
	if c.format == formatTable {
		c.warn("%s; the secret is shown only once:", what)
	}
	if err := c.print(made, func(out *page) { out.line("%s", secret) }); err != nil {
		return fmt.Errorf("the secret could not be written; run ratelimit %s: %w", undo, err)
	}
	return nil
}

// webhookTargetFlags defines which URLs and addresses webhooks may call.
func (c *call) webhookTargetFlags(t *webhook.Targets) {
	c.flags.Func("webhook-allow-private", "a comma-separated list of `networks`, such as 10.1.0.0/16, that webhooks may "+
		"call although their addresses are not public (default: none)", func(text string) (err error) {
		t.Private, err = webhook.ParseNetworks(text)
		return err
	})
	c.flags.BoolVar(&t.HTTP, "webhook-allow-http", false, "allow webhooks without TLS (http://)")
}
