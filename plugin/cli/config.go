package cli

import (
	"errors"
	"io"
	"os"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
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
	var text []byte
	err := c.read(f.file, func(r io.Reader, _ string) (err error) {
		text, err = io.ReadAll(r)
		return err
	})
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
