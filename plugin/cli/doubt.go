package cli

import (
	"context"
	"net/url"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/admit"
)

// knownConfigFlag defines --config and --plugin-route of a command that goes without them, and has the file read before
// the database is opened.
func (c *call) knownConfigFlag() {
	f := c.configFlag()
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
			c.configure = func(_ context.Context, o *api.Options) error {
				o.Decider = new(admit.Decider)
				o.IsConsumer = func(name string) bool { return loaded.ConsumerNames[name] }
				o.Decider.Policies.Store(plan)
				return nil
			}
		}
		return nil
	})
}

// reviewFlags defines --force, which it adds to the query, and --config of a command that writes policies.
func (c *call) reviewFlags(query url.Values) {
	c.flags.BoolFunc("force", forceUsage, func(text string) error {
		query.Set("force", text)
		return nil
	})
	c.knownConfigFlag()
}
