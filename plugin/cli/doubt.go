package cli

import (
	"context"
	"fmt"
	"net/url"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

// knownConfig is the plugin's config of a command that goes without one; nil: --config was not given.
type knownConfig struct {
	plan      *resolve.Plan
	consumers map[string]bool // of its file
}

func (k *knownConfig) isConsumer(name string) bool { return k.consumers[name] }

// knownConfigFlag defines --config and --plugin-route of a command that goes without them, and has the file read before
// the database is opened.
func (c *call) knownConfigFlag() *knownConfig {
	f, config := c.configFlag(), new(knownConfig)
	c.flags.Lookup("config").Usage = "a decK `file` with the plugin's config (- reads standard input): " +
		"also check against its tiers, limits and namespace (default: check against the database only)"
	c.flags.Lookup("plugin-route").Usage = routeUsage
	c.check(func() error {
		document := c.flags.Lookup("file")
		switch {
		case f.file == "":
		case f.file == "-" && document != nil && document.Value.String() == "-":
			return wrong("only one of --file and --config can read standard input")
		default:
			loaded, plan, err := c.load(f)
			if err != nil {
				return err
			}
			config.plan, config.consumers = plan, loaded.ConsumerNames
			c.configure = func(_ context.Context, o *api.Options) error {
				o.Decider, o.IsConsumer = new(admit.Decider), config.isConsumer
				o.Decider.Policies.Store(plan)
				return nil
			}
		}
		return nil
	})
	return config
}

// unforced returns the lock-outs of a review as errors, unless they are forced.
func unforced(r rows.Review, force bool) []error {
	var faults []error
	for _, l := range r.LockOuts {
		if !force {
			faults = append(faults, fmt.Errorf("%s: %s; use --force to write it anyway", l.Key, l.Why))
		}
	}
	return faults
}

// reviewFlags defines --force, which it adds to the query, and --config of a command that writes policies.
func (c *call) reviewFlags(query url.Values) {
	c.flags.BoolFunc("force", forceUsage, func(text string) error {
		query.Set("force", text)
		return nil
	})
	c.knownConfigFlag()
}

// warnAll shows warnings.
func (c *call) warnAll(warnings []string) {
	for _, warning := range warnings {
		c.warn("%s", warning)
	}
}
