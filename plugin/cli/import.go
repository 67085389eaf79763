package cli

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/node/routeconfig"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema/fromenvoy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema/fromkong"
)

var importCommand = &command{
	words: "import", args: "FILE",
	brief: "convert configs of Kong's own rate limiting plugins, or of envoyproxy/ratelimit (- reads standard input)",
	about: `In a decK file it converts the entries of rate-limiting, rate-limiting-advanced, response-ratelimiting and
ai-rate-limiting-advanced into entries of this plugin, and lists what will work otherwise. An entry with a value that
this plugin cannot express stays as it is, and so does one of another plugin of Kong that limits rates, such as
service-protection: then the exit code is 1. The converted file is written to standard output and the report to
standard error, or with -o FILE the report to standard output.

With --side-by-side Kong's plugins stay and go on enforcing, and the new entries count beside them in shadow mode. Later
the same command without it, on the original file, makes the new entries enforce; their counters go on.

With --envoy-config the files are the YAML of envoyproxy/ratelimit, one document for each. The converted file then has a
config with a tier for each rate limit, and the mapping for ratelimit serve --envoy-config is written beside it. A rate
limit that this plugin cannot express is left out.

Examples:
  ratelimit import kong.yml --side-by-side -o kong-shadow.yml
  ratelimit import kong.yml -o kong-new.yml && ratelimit validate kong-new.yml
  cat config/*.yaml | ratelimit import - --envoy-config envoy-doors.yml -o envoy-limits.yml`,
	exits: "0 all entries were converted, 1 some were not, or the file is not YAML, 2 usage error",
	define: func(c *call) action {
		f := new(importFlags)
		c.flags.StringVarP(&f.output, "output", "o", "", "the `file` to write (default: standard output)")
		c.flags.StringVar(&f.report, "report", formatTable, "the `format` of the report: table, json or yaml (default table)")
		c.complete("report", formatTable, formatJSON, formatYAML)
		c.flags.BoolVar(&f.options.SideBySide, "side-by-side", false,
			"add the new entries in shadow mode, beside Kong's, which go on enforcing")
		c.flags.StringVar(&f.options.Redis, "redis", "",
			"the `address` (HOST:PORT) of the Redis that counts for entries in Kong's database, or for Envoy")
		c.flags.StringVar(&f.mapping, "envoy-config", "",
			"convert the YAML of envoyproxy/ratelimit, and write the mapping of its descriptors to this `file`")
		c.check(f.check)
		return func(context.Context) error { return c.convert(f) }
	},
}

type importFlags struct {
	output, report, mapping string
	options                 fromkong.Options
}

func (f *importFlags) check() error {
	formats := []string{formatTable, formatJSON, formatYAML}
	switch {
	case !slices.Contains(formats, f.report):
		return wrong("--report must be table, json or yaml, got %q", f.report)
	case slices.Contains(formats, f.output):
		return wrong("-o names the file to write here; for the format of the report use --report %s", f.output)
	}
	return nil
}

func (c *call) convert(f *importFlags) error {
	if err := cmp.Or(notRead("-o", f.output, c.arg()), notRead("--envoy-config", f.mapping, c.arg())); err != nil {
		return err
	}
	f.options.Checks = []schema.Check{routeconfig.Compiles}
	text, _, err := c.readAll(c.arg())
	if err != nil {
		return wrong("%v", err)
	}
	result, mapping, err := convert(text, f)
	if err != nil {
		return fmt.Errorf("%s: %w", c.arg(), err)
	}
	if f.mapping != "" {
		if err := os.WriteFile(f.mapping, mapping, 0o644); err != nil {
			return fmt.Errorf("--envoy-config: %w", err)
		}
	}
	if err := c.writeConverted(f, result); err != nil {
		return err
	}
	if result.Converted() < len(result.Entries) {
		return exitStatus(exitFailed)
	}
	return nil
}

// convert converts a file of the kind that the flags name. Only Envoy's has a mapping.
func convert(text []byte, f *importFlags) (result *fromkong.Result, mapping []byte, err error) {
	if f.mapping != "" {
		return fromenvoy.Convert(text, f.options)
	}
	result, err = fromkong.Convert(text, f.options)
	return result, nil, err
}

// writeConverted writes the file and the report. The file goes to standard output as it is, because a screen would
// replace its tabs.
func (c *call) writeConverted(f *importFlags, result *fromkong.Result) error {
	reporter := *c
	reporter.format = f.report
	if f.output == "" || f.output == "-" {
		if err := writeText(c.stdout.to, string(result.Text), nil); err != nil {
			return err
		}
		operator := *c.operator
		operator.stdout = c.stderr
		reporter.operator = &operator
	} else if err := os.WriteFile(f.output, result.Text, 0o644); err != nil {
		return fmt.Errorf("-o: %w", err)
	}
	report := importReport{Entries: result.Entries, Differences: differencesOf(result)}
	return reporter.print(report, func(out *page) { report.writeTo(out, c.arg()) })
}

type importReport struct {
	Entries     []fromkong.Entry `json:"entries"`
	Differences []fromkong.Text  `json:"differences"` // of all entries
}

func differencesOf(result *fromkong.Result) []fromkong.Text {
	found := []fromkong.Text{}
	for _, text := range slices.Concat(fromkong.Differences(), fromenvoy.Differences()) {
		has := func(e fromkong.Entry) bool { return slices.Contains(e.Differences, text.ID) }
		if slices.ContainsFunc(result.Entries, has) {
			found = append(found, text)
		}
	}
	return found
}

// writeTo adds what became of each entry, and what will work otherwise.
func (r *importReport) writeTo(out *page, file string) {
	converted := 0
	for _, e := range r.Entries {
		if e.Converted {
			converted++
		}
		out.show(e)
		out.gap()
	}
	for _, d := range r.Differences {
		out.show(d)
		out.gap()
	}
	out.line("%s: %d of %s converted", file, converted, plural(len(r.Entries), "entry", "entries"))
}
