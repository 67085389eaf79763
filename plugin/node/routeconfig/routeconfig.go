// Package routeconfig finds the config of the plugin that Kong runs for a route in a decK file, and the tenants and
// tiers that it reads from the file's consumers.
package routeconfig

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema/deck"
)

// Config is one config of the plugin in a decK file.
type Config struct {
	schema.Config
	Where string // file:line path

	place deck.Place // whose requests it is for

	Routes map[string]string // the services of the routes in the file, by route
	Serves []string          // the routes for which Kong runs it

	ConsumerNames map[string]bool // the usernames, custom ids and ids of the consumers in the file

	Consumers []ConsumerTier // of the file's consumers, as the config reads them
	Changed   time.Time      // the file, if it is known; set by the reader of the file
}

// ChoiceError is the error of a file in which no config, or several, apply.
type ChoiceError struct{ problem string }

func (e *ChoiceError) Error() string { return e.problem }

func choiceError(format string, args ...any) error { return &ChoiceError{fmt.Sprintf(format, args...)} }

// Load returns the config in text, the decK file named file, that Kong runs for a route, and its compiled plan. Without
// a route the file must have one config. It returns a [ChoiceError] if no config, or several, apply.
func Load(text []byte, file, route string) (*Config, *resolve.Plan, error) {
	f, err := Read(text, file)
	if err != nil {
		return nil, nil, err
	}
	chosen, err := f.choose(file, route)
	if err != nil {
		return nil, nil, err
	}
	chosen.Routes, chosen.ConsumerNames = f.routes, map[string]bool{}
	for key := range f.byName {
		chosen.ConsumerNames[key.name] = true
	}
	for _, name := range slices.Sorted(maps.Keys(f.routes)) {
		if config, err := f.choose(file, name); err == nil && config == chosen {
			chosen.Serves = append(chosen.Serves, name)
		}
	}
	plan, err := resolve.FromConfig(chosen.Config)
	if err == nil {
		chosen.Consumers, err = f.ConsumerTiers(&chosen.Config)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", chosen.Where, err)
	}
	return chosen, plan, nil
}

// Compiles returns an error if a config does not compile. Package deck calls it after its own checks.
func Compiles(config schema.Config) error {
	_, err := resolve.FromConfig(config)
	return err
}

// choose returns the config that Kong runs for a route: the one on the route, or else on its service, or else the
// global one. It skips configs on consumers. Without a route it skips configs that only show usage, unless all do.
func (f *File) choose(file, route string) (*Config, error) {
	if route == "" {
		configs := slices.DeleteFunc(slices.Clone(f.Configs), func(c *Config) bool { return c.UsageOnly })
		if len(configs) == 0 {
			configs = f.Configs
		}
		if len(configs) == 1 {
			return configs[0], nil
		}
		return nil, choiceError("%s has %d configs of the plugin (%s): choose one with --plugin-route",
			file, len(configs), placesOf(configs))
	}
	service, exists := f.routes[route]
	best, rank := mostSpecific(f.Configs, route, service)
	switch {
	case rank < 3 && !exists:
		return nil, choiceError("--plugin-route: %s has no route %q", file, route)
	case best == nil:
		return nil, choiceError("no config of the plugin applies to route %s: %s has it on %s",
			route, file, placesOf(f.Configs))
	}
	return best, nil
}

// mostSpecific returns the config that Kong runs for a route of a service, or nil, and its rank: 3 on the route, 2 on
// the service, 1 for everything.
func mostSpecific(configs []*Config, route, service string) (best *Config, rank int) {
	for _, p := range configs {
		fits := 0
		switch at := p.place; {
		case p.ofConsumers():
		case at[deck.OfRoute] != "":
			if at[deck.OfRoute] == route {
				fits = 3
			}
		case at[deck.OfService] != "":
			if at[deck.OfService] == service {
				fits = 2
			}
		default:
			fits = 1
		}
		if fits > rank {
			best, rank = p, fits
		}
	}
	return best, rank
}

// File holds the configs of a decK file.
type File struct {
	Configs   []*Config
	routes    map[string]string // the services of the routes in the file, by route
	matchers  []matcher         // the paths of these routes
	consumers []identity.Consumer
	byName    map[consumerKey]*identity.Consumer
}

// Read returns the configs in text, the decK file of that name, which must have no faults.
func Read(text []byte, file string) (*File, error) {
	declared, findings := deck.ReadFile(bytes.NewReader(text), file, Compiles)
	var faults []error
	for _, f := range findings {
		if f.Severity == deck.Error {
			faults = append(faults, errors.New(f.String()))
		}
	}
	switch {
	case len(faults) > 0:
		return nil, errors.Join(faults...)
	case len(declared.Configs) == 0:
		return nil, fmt.Errorf("%s: holds no config of the plugin %s", file, schema.Name)
	}
	f := &File{routes: map[string]string{}, byName: map[consumerKey]*identity.Consumer{}}
	for _, c := range declared.Configs {
		f.Configs = append(f.Configs, &Config{Config: c.Config, Where: c.Where, place: c.Place})
	}
	for _, document := range declared.Documents {
		for _, r := range document.Routes {
			f.routes[r.Name] = document.Services[r.Name]
			f.matchers = appendMatchers(f.matchers, r)
		}
		for _, c := range document.Consumers {
			f.consumers = append(f.consumers, consumerOf(c))
		}
	}
	slices.SortStableFunc(f.matchers, func(a, b matcher) int { return a.order(&b) })
	for i := range f.consumers {
		for _, key := range keysOf(&f.consumers[i]) {
			if key.name != "" {
				f.byName[key] = &f.consumers[i]
			}
		}
	}
	return f, nil
}

// For returns the config that Kong runs for a route, or nil. The service is the service of a route that the file lacks.
func (f *File) For(route, service string) *Config {
	if inFile, ok := f.routes[route]; ok {
		service = inFile
	}
	best, _ := mostSpecific(f.Configs, route, service)
	return best
}

func (p *Config) ofConsumers() bool { return p.place[deck.OfConsumer]+p.place[deck.OfGroup] != "" }

// OfConsumers returns the configs on consumers and consumer groups, which For never returns.
func (f *File) OfConsumers() []*Config {
	return slices.DeleteFunc(slices.Clone(f.Configs), func(p *Config) bool { return !p.ofConsumers() })
}

func placesOf(configs []*Config) string {
	var list []string
	for _, p := range configs {
		list = append(list, p.String())
	}
	return strings.Join(list, "; ")
}

// String names the route, service or consumer of the config.
func (p *Config) String() string {
	if p.place == (deck.Place{}) {
		return "everything"
	}
	return strings.ReplaceAll(p.place.String(), ", ", " of ")
}
