package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/pgstore"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
)

// knownConfig is the plugin's config of a command that goes without one; nil: --config was not given.
type knownConfig struct{ plan *policy.Plan }

// knownConfigFlag defines --config and --plugin-route of a command that goes without them, and has the file read before
// the database is opened.
func (c *call) knownConfigFlag() *knownConfig {
	f, known := c.configFlag(), new(knownConfig)
	c.flags.Lookup("config").Usage = "the decK `file` with the plugin's config, to compare with its tiers, limits and namespace, too; - is standard input; " +
		"default: with the database alone"
	c.flags.Lookup("plugin-route").Usage = "the `route` whose config it is, by name; needed when the file has several"
	c.check(func() (err error) {
		document := c.flags.Lookup("file")
		switch {
		case f.file == "":
		case f.file == "-" && document != nil && document.Value.String() == "-":
			return wrong("--file and --config: only one of them can be standard input")
		default:
			_, known.plan, err = c.load(f)
		}
		return err
	})
	return known
}

// review returns why a policy is not to be written without --force. If nothing is in the way, it shows the warnings.
func (c *call) review(ctx context.Context, s *pgstore.Store, config *knownConfig, p pgstore.Policy, force bool) error {
	r, err := s.ReviewPolicy(ctx, config.plan, p)
	if err == nil {
		err = errors.Join(unforced(r, force)...)
	}
	if err == nil {
		c.warnAll(r.Warnings)
	}
	return err
}

// unforced returns the lock-outs of a review as errors, unless they are forced.
func unforced(r pgstore.Review, force bool) []error {
	var faults []error
	for _, l := range r.LockOuts {
		if !force {
			faults = append(faults, fmt.Errorf("%s: %s: give --force if that is meant", l.Key, l.Why))
		}
	}
	return faults
}

// warnAll shows warnings.
func (c *call) warnAll(warnings []string) {
	for _, warning := range warnings {
		c.warn("%s", warning)
	}
}

// warnOfName shows what Doubt… has found of a name. The write has been made by then, so an error is only a warning.
func (c *call) warnOfName(warning string, err error) {
	switch {
	case err != nil:
		c.warn("cannot check for a mistyped name: %v", err)
	case warning != "":
		c.warn("%s", warning)
	}
}
