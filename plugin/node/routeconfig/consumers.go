package routeconfig

import (
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// ConsumerTier is what a config reads from one consumer of its file: which tenant it is, and that tenant's tier.
type ConsumerTier struct {
	Tenant, Tier string
	Source       string // that names the tier, as in tier_from: consumer.tag.tier
}

// ConsumerTiers returns the tenant and the tier of each consumer from which the config reads both, in the file's order:
// a tenant can have several consumers, and so several tiers. It leaves out consumers for whom a header or a claim
// comes first in tenant_from or tier_from, because only their requests have these. The tier need not exist.
func (f *File) ConsumerTiers(config *schema.Config) (tiers []ConsumerTier, err error) {
	for i := range f.consumers {
		c := &f.consumers[i]
		rules := identity.Rules{Anonymous: config.AnonymousConsumers, CostHeader: -1, NeedTenant: true}
		if rules.Tenant, err = identity.ParseSources(fileSources(c, config.TenantFrom), &rules.Headers); err != nil {
			return nil, err
		}
		if rules.Tier, err = identity.ParseSources(fileSources(c, config.TierFrom), &rules.Headers); err != nil {
			return nil, err
		}
		request, id := identity.Request{Known: identity.ConsumerFact, Consumer: *c}, identity.Identity{}
		if rules.Identify(&request, &id); !id.Anonymous && id.Tier != "" {
			tiers = append(tiers, ConsumerTier{id.Tenant.ID, id.Tier, id.TierSource})
		}
	}
	return tiers, nil
}

// fileSources returns the sources before the first whose value for a consumer the file does not have. Kong gives an id
// to a consumer without one.
func fileSources(c *identity.Consumer, sources []string) []string {
	for i, source := range sources {
		if !strings.HasPrefix(source, "consumer.") || source == "consumer.id" && c.ID == "" {
			return sources[:i]
		}
	}
	return sources
}

// Consumer returns the file's consumer with the id, the username or the custom id of another, or nil.
func (f *File) Consumer(like *identity.Consumer) *identity.Consumer {
	for _, key := range keysOf(like) {
		if c := f.byName[key]; c != nil {
			return c
		}
	}
	return nil
}

// consumerKey is a name of a consumer that no other consumer has in the same field.
type consumerKey struct{ field, name string }

// keysOf returns the names of a consumer: the id, which never changes, first.
func keysOf(c *identity.Consumer) [3]consumerKey {
	return [...]consumerKey{{"id", c.ID}, {"username", c.Username}, {"custom_id", c.CustomID}}
}

// consumerOf returns a consumer of a decK file. A field of another type, which Kong denies, counts as absent.
func consumerOf(item *yaml.Node) identity.Consumer {
	var c struct {
		ID       string
		Username string
		CustomID string `yaml:"custom_id"`
		Tags     []string
	}
	_ = item.Decode(&c)
	return identity.Consumer(c)
}
