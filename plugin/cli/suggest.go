package cli

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/lab/replay"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/lab/suggest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/node/routeconfig"
)

var suggestCommand = &command{
	words: "suggest", args: "[LOG ...]", brief: "propose limits per tier and endpoint, by recorded traffic",
	about: `It counts what each tenant has requested in each window, and writes a file of policies for ratelimit apply:
for each tier, and for its busiest endpoints, a percentile of these counts times some headroom. A comment at each limit
says how many tenants it would have denied, which a replay of the same logs finds: so they are read twice.

  ratelimit suggest --config kong.yml --log access.jsonl.gz --percentile 99.9 --headroom 1.5 > policies.yaml

With --config, tenants, tiers and costs are those of the configs, and the file's consumers add the tags and names that
the logs lack; without, they are read from the default sources, or from those of --tenant-from and --tier-from. Logs are
as for ratelimit replay.`,
	exits: "0 success, 1 failure, 2 usage error, 3 a log breaks off",
	define: func(c *call) action {
		f := c.suggestFlags()
		return func(ctx context.Context) error { return c.suggest(ctx, f) }
	},
}

type suggestFlags struct {
	config  configFlags
	logs    logFlags
	window  int64 // seconds
	options suggest.Options
}

func (c *call) suggestFlags() *suggestFlags {
	f := &suggestFlags{window: 60}
	f.options = suggest.Options{Percentile: 99.9, Headroom: 1.5, Endpoints: 5, DefaultTier: "default"}
	c.flags.StringVar(&f.config.file, "config", "", "the decK `file` with the plugin's configs")
	c.flags.StringVar(&f.config.route, "plugin-route", "", "decide all requests as of this `route`")
	c.logFlags(&f.logs)
	c.flags.Func("percentile",
		"the `percent` of a tenant's windows that a limit is to suffice for, before headroom (default 99.9)",
		numberTo(&f.options.Percentile))
	c.flags.Func("headroom", "the `factor` from what was used to the limit (default 1.5)", numberTo(&f.options.Headroom))
	c.flags.Func("window", "the window of the limits, in seconds or as a `duration` such as 24h (default 60)",
		reads(parseWindow, &f.window))
	c.flags.IntVar(&f.options.Endpoints, "endpoints", f.options.Endpoints,
		"the most endpoints of a tier that get a limit of their own (default 5)")
	c.flags.StringVar(&f.options.DefaultTier, "default-tier", f.options.DefaultTier,
		"the `tier` of tenants without one, where --config does not say (default default)")
	c.outputFlagOf(formatYAML, formatJSON)
	c.format = formatYAML
	c.check(func() error {
		f.options.Window = limit.Micros(f.window) * limit.Second
		if err := f.options.Check(); err != nil {
			return wrong("%v", err)
		}
		for _, file := range f.logs.files {
			if file == "-" {
				return wrong("--log -: the logs are read twice: write standard input to a file first")
			}
		}
		return nil
	})
	return f
}

// numberTo returns what reads a number of a flag.
func numberTo(to *float64) func(string) error {
	return func(text string) (err error) {
		if *to, err = strconv.ParseFloat(text, 64); err != nil {
			return errors.New("must be a number")
		}
		return nil
	}
}

func (c *call) suggest(ctx context.Context, f *suggestFlags) error {
	file, namespace, err := c.suggestFile(&f.config)
	if err != nil {
		return err
	}
	collector := suggest.NewCollector(f.options)
	first, _, err := c.replayLogs(ctx, &f.logs, suggest.Probe(file), nil, f.config.route, collector.Add)
	if err != nil {
		return err
	}
	list := collector.Suggest()
	if len(list) == 0 {
		return fmt.Errorf("no limits can be suggested: the logs hold %s, but no tenant "+
			"(--tenant-from says where tenants are named)", counted(first.Requests, "request"))
	}
	judge := suggest.Judge(file, list, f.options.DefaultTier)
	judged, _, err := c.replayLogs(ctx, &f.logs, judge, nil, f.config.route, nil)
	if err != nil {
		return err
	}
	suggest.AddTouched(list, judged)
	result := suggestions{
		Namespace: namespace, From: first.From, To: first.To, Requests: first.Requests, Tenants: collector.Tenants(),
		Policies: list, Input: first.Counts, WithoutTier: first.WithoutTier,
	}
	if c.format == formatJSON {
		err = writeJSON(c.stdout, result)
	} else {
		var out page
		result.document(&out, &f.options)
		err = out.write(c.stdout)
	}
	if err != nil {
		return err
	}
	return c.brokenLogs(first.Counts)
}

// suggestFile returns the configs by which requests are identified, and their namespace.
func (c *call) suggestFile(f *configFlags) (*routeconfig.File, string, error) {
	file := suggest.Default()
	if f.file != "" {
		var err error
		if file, err = c.deckFile(f.file); err != nil {
			return nil, "", err
		}
		if f.route != "" {
			chosen := file.For(f.route, "")
			if chosen == nil {
				return nil, "", wrong("--plugin-route: no config of the plugin applies to route %q", f.route)
			}
			file.Configs = []*routeconfig.Config{chosen}
		}
	}
	namespace := file.Configs[0].Namespace
	for _, config := range file.Configs {
		if config.Namespace != namespace {
			return nil, "", wrong("--config: %s has configs of the namespaces %s and %s: choose one with --plugin-route",
				f.file, namespace, config.Namespace)
		}
	}
	return file, namespace, nil
}

type suggestions struct {
	Namespace string               `json:"namespace"`
	From      time.Time            `json:"from"`
	To        time.Time            `json:"to"`
	Requests  int64                `json:"requests"`
	Tenants   int                  `json:"tenants"`
	Policies  []suggest.Suggestion `json:"policies"`
	Input     replay.Counts        `json:"input"`

	WithoutTier int64 `json:"without_tier"` // requests of tenants whose tier is not known: they count for the default tier
}

// document writes the suggestions as a file of policies.
func (s *suggestions) document(out *page, o *suggest.Options) {
	out.line("# Suggested by ratelimit suggest, from %s of %s,", counted(s.Requests, "request"),
		counted(s.Tenants, "tenant"))
	out.line("# %s to %s: percentile %g of what a tenant requested", timeText(s.From), timeText(s.To), o.Percentile)
	out.line("# in %s, times %g.", counted(int64(o.Window/limit.Second), "second"), o.Headroom)
	if s.Input.Unparsed+s.Input.Late > 0 {
		out.line("# Left out: %s without a request, and %s out of order.", counted(s.Input.Unparsed, "line"),
			counted(s.Input.Late, "request"))
	}
	if s.WithoutTier > 0 {
		out.line("# %s: neither the logs nor", plural(s.WithoutTier,
			"request is of a tenant without a tier", "requests are of tenants without a tier"))
		out.line("# a consumer in --config names it, so they count for the default tier.")
	}
	out.line("namespace: %s", s.Namespace)
	out.line("policies:")
	for _, p := range s.Policies {
		out.line("# %s: percentile %d, most %d in a window; would have denied %s.",
			counted(p.Tenants, "tenant"), p.Observed, p.Most, touchedText(&p))
		out.line("- name: %s", p.Name)
		out.line("  tier: %s", yamlString(p.Tier))
		if p.Endpoint == "" {
			out.line("  scope: tenant")
		} else {
			out.line("  scope: tenant+endpoint")
			out.line("  endpoint: %s", yamlString(p.Endpoint))
		}
		out.line("  limit: %d", p.Limit)
		out.line("  window_size: %d", p.Window)
	}
}

// touchedText returns whom a suggestion would have denied.
func touchedText(s *suggest.Suggestion) string {
	if s.Touched.Denied == 0 {
		return "no tenant"
	}
	return fmt.Sprintf("%s (%s of %d)", counted(s.Touched.Tenants, "tenant"),
		counted(s.Touched.Denied, "request"), s.Requests)
}
