package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/internal/setting"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/pgstore"
)

var policyCommands = []*command{
	{
		words: "policy list", brief: "list policies",
		about: `With -o yaml the output is a document for ratelimit apply and diff: the active policies of one namespace.`,
		define: func(c *call) action {
			f := pgstore.PolicyFilter{}
			c.formats = []string{"yaml"}
			c.flags.StringVar(&f.Tier, "tier", "", "only overrides of this `tier`")
			c.flags.StringVar(&f.Tenant, "tenant", "", "only overrides of this `tenant`")
			c.flags.StringVar(&f.Name, "name", "", "only overrides of this `name`")
			c.flags.StringVar(&f.Namespace, "namespace", "", "only overrides of this `namespace`")
			c.slotFlag(&f.Slot)
			c.afterFlag(&f.After)
			c.pageFlag(&f.Max)
			c.check(func() error { return c.documentOnly(&f) })
			return c.reads(func(ctx context.Context, s *pgstore.Store) error {
				if c.yaml {
					return c.showDocument(f, s.EachPolicy(ctx, f))
				}
				return policyList.show(c, s.EachPolicy(ctx, f))
			})
		},
	},
	{
		words: "policy get", args: "NAME", brief: "show one policy", least: 1, most: 1,
		define: func(c *call) action {
			key := c.keyFlags()
			return c.reads(func(ctx context.Context, s *pgstore.Store) error {
				p, err := s.Policy(ctx, key())
				if err != nil {
					return err
				}
				return c.print(p, func(out *page) { policyList.add(out, p) })
			})
		},
	},
	{
		words: "policy put", args: "NAME", brief: "write a policy for a tier or a tenant, over the one of that name and match or as a new one",
		about: `All of the policy is written: what is not given has its default, whatever it was before.
Policies of different names all apply to a request. Of those of one name one does: tenant before tier, and of several
endpoints the narrowest.`,
		least: 1, most: 1,
		define: func(c *call) action {
			key, fields := c.keyFlags(), c.limitFlags()
			force, config := c.forceFlag(), c.knownConfigFlag()
			return c.writes(func(ctx context.Context, s *pgstore.Store, by pgstore.Change) (written, error) {
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
			return c.writes(func(ctx context.Context, s *pgstore.Store, by pgstore.Change) (written, error) {
				version, err := s.DeletePolicy(ctx, by, key(), revision)
				return written{What: "deleted " + key().String(), Version: version}, err
			})
		},
	},
}

// keyFlags define what names a policy beside its name, and are that.
func (c *call) keyFlags() func() pgstore.PolicyKey {
	key := new(pgstore.PolicyKey)
	c.flags.StringVar(&key.Tier, "tier", "", "the `tier` that it is for; this or --tenant")
	c.flags.StringVar(&key.Tenant, "tenant", "", "the `tenant` that it is for; this or --tier")
	c.flags.StringVar(&key.Endpoint, "endpoint", "", "the requests that it covers, as `pattern` METHOD /path/{id}; default: all")
	c.flags.StringVar(&key.Namespace, "namespace", "", "the `namespace` of the plugin configs beside which it applies; default: default")
	c.slotFlag(&key.Slot)
	return func() pgstore.PolicyKey {
		key.Name = c.arg()
		return *key
	}
}

func (c *call) slotFlag(to *string) {
	c.flags.Func("slot", "the `slot`: active, or candidate, of which there are old ones only: they apply to nothing", func(text string) error {
		if text != pgstore.SlotActive && text != pgstore.SlotCandidate {
			return errors.New("must be active or candidate")
		}
		*to = text
		return nil
	})
}

// policyFields are a policy as flags.
type policyFields struct{ pgstore.Policy }

func (p *policyFields) setKey(k pgstore.PolicyKey) {
	p.Namespace, p.Name, p.Tier, p.Tenant, p.Endpoint, p.Slot = k.Namespace, k.Name, k.Tier, k.Tenant, k.Endpoint, k.Slot
}

// limitFlags define all of a policy but its key.
func (c *call) limitFlags() *policyFields {
	p := new(policyFields)
	c.flags.StringVar(&p.Scope, "scope", "tenant", "the `scope` that it is counted per: tenant, user, credential, ip, endpoint, global, tenant+endpoint or user+endpoint; default: tenant")
	c.tokensFlag("limit", "how many `tokens` a window allows", &p.Limit.Limit)
	c.windowFlag(&p.WindowSize, "how long a window is, in seconds or as a `duration` such as 60s or 24h")
	c.tokensFlag("burst", "how many `tokens` a bucket holds; default: the limit, of a leaky_bucket 1", &p.Burst)
	c.flags.StringVar(&p.Algorithm, "algorithm", "", "the `algorithm`: token_bucket, leaky_bucket, fixed_window, sliding_window or sliding_log; default: token_bucket")
	c.tokensFlag("soft-threshold-pct", "warn above this `percentage` of the limit", &p.SoftThresholdPct)
	c.tokensFlag("hard-threshold-pct", "with a soft threshold: refuse above this `percentage`; default: 100", &p.HardThresholdPct)
	c.flags.BoolVar(&p.SoftOnly, "soft-only", false, "warn and never refuse")
	c.flags.StringVar(&p.Mode, "mode", "", "the `mode`: enforce, shadow or log; default: that of the config")
	c.flags.StringVar(&p.FailMode, "fail-mode", "", "the `mode` without Redis: open, closed or local; default: that of the config")
	c.flags.StringVar(&p.Accuracy, "accuracy", "", "the `accuracy`: leased, with which nodes take tokens ahead of need, or exact, with which every request asks Redis; default: that of the config")
	c.flags.Func("cost", "what a request costs, in `tokens`; 0 is free; default: the request's cost", func(text string) error {
		var n int
		if err := setting.ParseInt(text, 0, &n); err != nil {
			return err
		}
		cost := int64(n)
		p.Cost = &cost
		return nil
	})
	c.publicNoteFlag(&p.PublicNote)
	c.revisionFlag(&p.Revision)
	return p
}

func (c *call) publicNoteFlag(to *string) {
	c.flags.StringVar(to, "public-note", "", "the `text` that the tenant reads about it, in the REST API; the reason is for operators alone")
}

func (c *call) tokensFlag(name, usage string, to *int64) {
	c.flags.Func(name, usage, func(text string) error {
		var n countFlag
		err := n.Set(text)
		*to = n.n
		return err
	})
}

func (c *call) windowFlag(to *int64, usage string) {
	c.flags.Func("window", usage, func(text string) error {
		var w windowFlag
		err := w.Set(text)
		*to = w.seconds
		return err
	})
}

// policyList is how policies are shown.
var policyList = listing[pgstore.Policy]{
	"ID|POLICY|FOR|ENDPOINT|LIMIT|SCOPE|ALGORITHM|MODE|FAIL MODE|ACCURACY|NAMESPACE|REVISION",
	func(p pgstore.Policy) []any {
		name := p.Name
		if p.Slot == pgstore.SlotCandidate {
			name += " (candidate)"
		}
		return []any{
			p.ID, name, forWhom(p.Tier, p.Tenant), p.Endpoint, limitText(p), p.Scope, p.Algorithm, p.Mode, p.FailMode, p.Accuracy, p.Namespace, p.Revision,
		}
	},
}

// limitText is the quantity of a policy and what changes it, in words.
func limitText(p pgstore.Policy) string {
	parts := []string{perWindow(p.Limit.Limit, p.WindowSize)}
	add := func(given bool, format string, args ...any) {
		if given {
			parts = append(parts, fmt.Sprintf(format, args...))
		}
	}
	add(p.Burst > 0, "burst %d", p.Burst)
	add(p.SoftThresholdPct > 0, "soft %d %%", p.SoftThresholdPct)
	add(p.HardThresholdPct > 0, "hard %d %%", p.HardThresholdPct)
	add(p.SoftOnly, "never refuses")
	if p.Cost != nil {
		add(true, "cost %d", *p.Cost)
	}
	return strings.Join(parts, ", ")
}

func perWindow(limit, window int64) string {
	if window == 0 {
		return fmt.Sprint(limit)
	}
	return fmt.Sprintf("%d per %d s", limit, window)
}
