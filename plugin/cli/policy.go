package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

var policyCommands = []*command{
	{
		words: "policy list", brief: "list policies",
		about: `-o yaml writes a file for ratelimit apply and diff: the active policies of one namespace (--namespace, or
default). If --name or what a policy is for, such as --tier, selects some of them, the file says partial: true, and
apply and diff require --partial.`,
		define: func(c *call) action {
			f := rows.PolicyFilter{}
			c.flags.StringVar(&f.Tier, "tier", "", "only policies of this `tier`")
			c.flags.StringVar(&f.Tenant, "tenant", "", "only policies of this `tenant`")
			c.flags.StringVar(&f.User, "user", "", "only policies of this `user`")
			c.flags.StringVar(&f.Credential, "credential", "", "only policies of this `credential`")
			c.flags.StringVar(&f.IP, "ip", "", "only policies of this `address` or network, as it is written there")
			c.flags.StringVar(&f.For, "for", "", "only policies for `all` or anonymous requests")
			c.flags.StringVar(&f.Name, "name", "", "only policies of this `name`")
			c.flags.StringVar(&f.Namespace, "namespace", "", "only policies of this `namespace`")
			c.afterFlag(&f.After)
			c.pageFlag(&f.Max)
			c.check(func() error { return c.documentOnly(&f) })
			return c.reads(func(ctx context.Context, s *rows.DB) error {
				if c.format == formatYAML {
					if err := c.showDocument(f, s.EachPolicy(ctx, f)); err != nil {
						return err
					}
					return c.warnOfNamespaces(ctx, s, f)
				}
				return policyList.show(c, s.EachPolicy(ctx, f))
			})
		},
	},
	{
		words: "policy get", args: "NAME", brief: "show one policy", least: 1, most: 1,
		define: func(c *call) action {
			key := c.keyFlags()
			return c.reads(func(ctx context.Context, s *rows.DB) error {
				p, err := s.Policy(ctx, key())
				if err != nil {
					return nameOthers(ctx, s, key(), err)
				}
				return c.print(p, func(out *page) { policyList.add(out, p) })
			})
		},
	},
	{
		words: "policy put",
		args:  "NAME",
		brief: "create or replace a policy",
		about: `A policy is for a tier, for a tenant or one user of it, for a credential, for an address or a network, or for
all or anonymous requests. It is identified by its name, what it is for, its endpoint and its namespace. The whole
policy is replaced: flags that are not given reset their fields to the defaults.

  ratelimit policy put total --for all --scope global --limit 50000 --window 1
  ratelimit policy put crawlers --ip 203.0.113.0/24 --limit 10 --window 1

Policies with different names all apply to a request. If several have the same name, only one applies: that of the user,
the credential, the narrowest network, the tenant, anonymous requests, the tier, or all requests, in this order; and of
these the one with the most specific endpoint.`,
		least: 1,
		most:  1,
		define: func(c *call) action {
			key, fields := c.keyFlags(), c.limitFlags()
			c.revisionFlag(&fields.Revision)
			force, config := c.forceFlag(), c.knownConfigFlag()
			return c.writesRows(func(ctx context.Context, s *rows.DB, by rows.Change) (written, error) {
				p := fields
				p.setKey(key())
				if err := c.review(ctx, s, config, p.Policy, *force); err != nil {
					return written{}, err
				}
				row, version, err := s.PutPolicy(ctx, by, p.Policy)
				return written{What: "put " + p.Key().String(), Version: version, Row: row}, err
			})
		},
	},
	{
		words: "policy delete", args: "NAME", brief: "delete a policy", least: 1, most: 1,
		define: func(c *call) action {
			key := c.keyFlags()
			var revision int64
			c.revisionFlag(&revision)
			return c.writesRows(func(ctx context.Context, s *rows.DB, by rows.Change) (written, error) {
				version, err := s.DeletePolicy(ctx, by, key(), revision)
				return written{What: "deleted " + key().String(), Version: version}, nameOthers(ctx, s, key(), err)
			})
		},
	},
}

// nameOthers returns an error about the policy of a key. If it does not exist, the error names those of the same name.
func nameOthers(ctx context.Context, s *rows.DB, key rows.PolicyKey, err error) error {
	if !errors.As(err, new(*rows.NotFoundError)) {
		return err
	}
	const most = 5
	var others []string
	for p, listErr := range s.EachPolicy(ctx, rows.PolicyFilter{Name: key.Name, Max: most + 1}) {
		if listErr != nil {
			return errors.Join(err, listErr)
		}
		others = append(others, p.Key().String())
	}
	switch {
	case len(others) == 0:
		return err
	case len(others) > most:
		others[most] = "others, which ratelimit policy list --name shows"
	}
	return fmt.Errorf("%w, but there is %s", err, strings.Join(others, "; "))
}

// keyQuery returns the parameters of the fields that a key has.
func keyQuery(k rows.PolicyKey) url.Values {
	query := url.Values{}
	for name, value := range map[string]string{
		"namespace": k.Namespace, "name": k.Name, "tier": k.Tier, "tenant": k.Tenant, "user": k.User,
		"credential": k.Credential, "ip": k.IP, "for": k.For, "endpoint": k.Endpoint,
	} {
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

// matchFlags defines what a policy matches.
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

// policyFields are a policy as flags.
type policyFields struct{ rows.Policy }

func (p *policyFields) setKey(k rows.PolicyKey) {
	p.Namespace, p.Name, p.Endpoint = k.Namespace, k.Name, k.Endpoint
	p.Tier, p.Tenant, p.User, p.Credential, p.IP, p.For = k.Tier, k.Tenant, k.User, k.Credential, k.IP, k.For
	p.Scope = cmp.Or(p.Scope, p.DefaultScope())
}

// policyKeyFields name a policy; keyFlags define their flags.
var policyKeyFields = []string{"namespace", "name", "tier", "tenant", "user", "credential", "ip", "for", "endpoint"}

// limitFlags defines all of a policy but its key.
func (c *call) limitFlags() *policyFields {
	p := new(policyFields)
	fields := schema.PolicyFields()
	for i := range fields {
		if !slices.Contains(policyKeyFields, fields[i].Name) {
			fieldFlag(c, &fields[i], &p.Policy.Policy)
		}
	}
	c.flags.Lookup("scope").Usage += " (default: what the policy is for, such as tenant)"
	return p
}

// policyList is how policies are shown.
var policyList = listing[rows.Policy]{
	"ID|POLICY|FOR|ENDPOINT|LIMIT|SCOPE|ALGORITHM|MODE|FAIL MODE|ACCURACY|NAMESPACE|REVISION",
	func(p rows.Policy) []any {
		return []any{
			p.ID,
			p.Name,
			p.Target(),
			p.Endpoint,
			limitText(p),
			p.Scope,
			p.Algorithm,
			modeCell(p.Mode),
			p.FailMode,
			p.Accuracy,
			p.Namespace,
			p.Revision,
		}
	},
}

// limitText returns the quantity of a policy and what changes it, in words.
func limitText(p rows.Policy) string {
	parts := []string{perWindow(p.Limit.Limit, p.WindowSize)}
	add := func(given bool, format string, args ...any) {
		if given {
			parts = append(parts, fmt.Sprintf(format, args...))
		}
	}
	add(p.Burst > 0, "burst %d", p.Burst)
	add(p.SoftThresholdPct > 0, "soft %d %%", p.SoftThresholdPct)
	add(p.HardThresholdPct > 0, "hard %d %%", p.HardThresholdPct)
	add(p.SoftOnly, "never denies")
	if p.Cost != nil {
		add(true, "cost %d", *p.Cost)
	}
	if p.Settle != nil {
		add(true, "%s", p.Settle.Describe())
	}
	if p.Fair != nil {
		add(true, "%s", p.Fair.Describe())
	}
	add(p.Description != "", "%s", p.Description)
	return strings.Join(parts, ", ")
}

func perWindow(limit, window int64) string {
	if window == 0 {
		return fmt.Sprint(limit)
	}
	return fmt.Sprintf("%d per %d s", limit, window)
}
