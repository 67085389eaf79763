package cli

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/url"
	"os"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/policysync"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/node/routeconfig"
)

// configFlags name the decK file and the config in it.
type configFlags struct{ file, route string }

func (c *call) configFlag() *configFlags {
	f := new(configFlags)
	c.flags.StringVar(&f.file, "config", "", "the decK `file` with the plugin's config (- reads standard input)")
	c.flags.StringVar(&f.route, "plugin-route", "",
		"the name of the request's `route`: selects the config, and is the endpoint for limits per endpoint; "+
			"required if the file has several configs")
	return f
}

// routeUsage is the help of --plugin-route where it only selects a config.
const routeUsage = "the name of the `route` whose config to use; required if the file has several configs"

// load returns the config that applies, and its compiled plan.
func (c *call) load(f *configFlags) (*routeconfig.Config, *resolve.Plan, error) {
	if f.file == "" {
		return nil, nil, wrong("--config is required: the decK file with the plugin's config, such as --config kong.yml")
	}
	text, _, err := c.readAll(f.file)
	if err != nil {
		return nil, nil, wrong("--config: %v", err)
	}
	config, plan, err := routeconfig.Load(text, f.file, f.route)
	if errors.As(err, new(*routeconfig.ChoiceError)) {
		err = wrong("%s", err)
	}
	if err != nil {
		return nil, nil, err
	}
	if info, err := os.Stat(f.file); err == nil {
		config.Changed = info.ModTime()
	} else { // standard input
		config.Changed = c.now()
	}
	return config, plan, nil
}

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

// readSaved returns what a node has saved, however many rows.
func readSaved(file string) (policysync.Saved, error) {
	saved, err := policysync.ReadFile(file, math.MaxInt)
	if err != nil {
		return saved, fmt.Errorf("--snapshot: %w", err)
	}
	return saved, nil
}

// savedRows returns the rows that a node has saved, without its candidate.
func savedRows(file string) (policy.Rows, error) {
	saved, err := readSaved(file)
	return saved.Rows, err
}
