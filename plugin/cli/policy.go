package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

var policyCommands = []*command{
	{
		words: "policy list", brief: "list policies",
		about: `-o yaml writes a file for ratelimit apply and diff: the active policies of one namespace (--namespace, or
default). If --name or what a policy is for, such as --tier, selects some of them, the file says partial: true, and
apply and diff require --partial.`,
		define: func(c *call) action {
			p := c.listFlags(rows.PolicyFilter{})
			c.check(c.documentOnly)
			return c.asks(func(ctx context.Context, rest *answers.Client) error {
				if c.format == formatYAML {
					return c.showPolicies(ctx, rest, p)
				}
				return showRows(c, each[rows.Policy](ctx, rest, policiesPath, p))
			})
		},
	},
	{
		words: "policy get", args: "NAME", brief: "show one policy",
		define: func(c *call) action {
			key := c.keyFlags()
			return c.asks(func(ctx context.Context, rest *answers.Client) error {
				p, err := findPolicy(ctx, rest, key())
				if err != nil {
					return err
				}
				return c.print(p, nil)
			})
		},
	},
	{
		words: "policy put", args: "NAME", brief: "create or replace a policy",
		about: `A policy is for a tier, for a tenant or one user of it, for a credential, for an address or a network, or for
all or anonymous requests. It is identified by its name, what it is for, its endpoint and its namespace. The whole
policy is replaced: flags that are not given reset their fields to the defaults.

  ratelimit policy put total --for all --scope global --limit 50000 --window 1
  ratelimit policy put crawlers --ip 203.0.113.0/24 --limit 10 --window 1

Policies with different names all apply to a request. If several have the same name, only one applies: that of the user,
the credential, the narrowest network, the tenant, anonymous requests, the tier, or all requests, in this order; and of
these the one with the most specific endpoint.`,
		define: func(c *call) action {
			key, p, query := c.keyFlags(), c.limitFlags(), c.overFlag()
			c.reviewFlags(query)
			return c.writes(func() change {
				setKey(p, key())
				return change{
					method: http.MethodPut, path: policiesPath, query: query, body: p,
					what: "put " + key().String(), row: "policy",
				}
			})
		},
	},
	{
		words: "policy delete", args: "NAME", brief: "delete a policy",
		define: func(c *call) action {
			key, query := c.keyFlags(), c.overFlag()
			return c.writesFound(func(ctx context.Context, rest *answers.Client) (change, error) {
				p, err := findPolicy(ctx, rest, key())
				return change{
					method: http.MethodDelete, path: fmt.Sprint(policiesPath, "/", p.ID), query: query,
					what: "deleted " + key().String(),
				}, err
			})
		},
	},
}

func findPolicy(ctx context.Context, rest *answers.Client, key rows.PolicyKey) (rows.Policy, error) {
	key.Namespace = cmp.Or(key.Namespace, "default")
	for p, err := range answers.Each[rows.Policy](ctx, rest, policiesPath, keyQuery(key), 0) {
		// The query selects by all fields that the key has, whatever their spelling.
		same := len(keyQuery(p.Key())) == len(keyQuery(key))
		if err != nil || same {
			return p, err
		}
	}
	return rows.Policy{}, fmt.Errorf("%w: ratelimit policy list --name %s shows those of this name",
		&rows.NotFoundError{What: key.String()}, key.Name)
}

const policiesPath = "/v1/ratelimit/policies"

// keyFields returns the fields of a key by the names of their parameters and flags.
func keyFields(k rows.PolicyKey) (fields map[string]string) {
	text, _ := json.Marshal(k) // it has texts only
	_ = json.Unmarshal(text, &fields)
	return fields
}

// keyQuery returns the parameters of the fields that a key has.
func keyQuery(k rows.PolicyKey) url.Values {
	query := url.Values{}
	for name, value := range keyFields(k) {
		if value != "" {
			query.Set(name, value)
		}
	}
	return query
}

// keyFlags defines what names a policy beside its name, and returns it.
func (c *call) keyFlags() func() rows.PolicyKey {
	key := c.matchFlags()
	return func() rows.PolicyKey {
		key.Name = c.arg()
		return *key
	}
}

func (c *call) matchFlags() *rows.PolicyKey {
	key := new(rows.PolicyKey)
	const oneOf = "; one of --tier, --tenant, --credential, --ip and --for is required"
	c.flags.StringVar(&key.Tier, "tier", "", "the `tier` of the policy"+oneOf)
	c.flags.StringVar(&key.Tenant, "tenant", "", "the `tenant` of the policy")
	c.flags.StringVar(&key.User, "user", "", "only this `user` of the tenant")
	c.flags.StringVar(&key.Credential, "credential", "", "the `credential` of the policy, by its id in Kong")
	c.flags.StringVar(&key.IP, "ip", "", "the `address` or network of the policy, such as 203.0.113.0/24")
	c.flags.StringVar(&key.For, "for", "", "`all` requests, or anonymous for those without a tenant")
	c.flags.StringVar(&key.Endpoint, "endpoint", "",
		"the requests to limit, as a `pattern` such as \"GET /path/{id}\" (default: all requests)")
	c.flags.StringVar(&key.Namespace, "namespace", "",
		"the `namespace` of the plugin configs that use the policy (default \"default\")")
	return key
}

func setKey(p *rows.Policy, k rows.PolicyKey) {
	p.Namespace, p.Name, p.Endpoint = k.Namespace, k.Name, k.Endpoint
	p.Tier, p.Tenant, p.User, p.Credential, p.IP, p.For = k.Tier, k.Tenant, k.User, k.Credential, k.IP, k.For
	p.Scope = cmp.Or(p.Scope, p.DefaultScope())
}

// policyKeyFields name a policy; keyFlags define their flags.
var policyKeyFields = slices.Collect(maps.Keys(keyFields(rows.PolicyKey{})))

// limitFlags defines all of a policy but its key.
func (c *call) limitFlags() *rows.Policy {
	p := new(rows.Policy)
	fieldFlags(c, &p.Policy, policyKeyFields...)
	c.flags.Lookup("scope").Usage += " (default: what the policy is for, such as tenant)"
	return p
}

var costCommands = []*command{
	{
		words: "cost list", brief: "list what requests to endpoints cost",
		about:  `The plugin's config may have costs too, which are not listed. A row takes precedence over them.`,
		define: lists[rows.Cost](costsPath, rows.CostFilter{}),
	},
	{
		words: "cost put", args: "ENDPOINT", brief: "set what requests to an endpoint cost",
		about: `The endpoint is a pattern, as that of a policy. Of several that match a request the most specific one counts,
before the costs in the plugin's config. A cost that the request itself states (cost_header) goes before both, and a
policy with a cost of its own ignores all of them. A cost that a limit can never hold is written with a warning: that
limit denies the requests always. With --config, the limits in the plugin's config are compared too.

  ratelimit cost put "POST /exports" --cost 50 --reason "exports are slow"`,
		define: func(c *call) action {
			var cost rows.Cost
			fieldFlags(c, &cost.Cost, "endpoint") // the argument
			query := c.overFlag()
			c.knownConfigFlag()
			c.wrongIf(func() bool { return !c.given("cost") }, "--cost is required; 0 makes the requests free")
			return c.writes(func() change {
				cost.Endpoint = c.arg()
				return change{
					method: http.MethodPut, path: costsPath, query: query, body: cost.Cost,
					what: "put the " + cost.String(), row: "cost",
				}
			})
		},
	},
	{
		words: "cost delete", args: "ENDPOINT",
		brief: "delete the cost of an endpoint; the plugin's config then sets it",
		define: func(c *call) action {
			query := c.overFlag()
			namespace := c.flags.String("namespace", "default", "the `namespace` of the cost (default \"default\")")
			return c.writesFound(func(ctx context.Context, rest *answers.Client) (change, error) {
				of := url.Values{"namespace": {*namespace}, "endpoint": {c.arg()}}
				for row, err := range answers.Each[rows.Cost](ctx, rest, costsPath, of, 1) {
					return change{
						method: http.MethodDelete, path: fmt.Sprint(costsPath, "/", row.ID), query: query,
						what: "deleted the " + row.String(),
					}, err
				}
				return change{}, &rows.NotFoundError{What: "the cost of " + c.arg()}
			})
		},
	},
}

const costsPath = "/v1/ratelimit/costs"
