package cli

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/node/routeconfig"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema/fromenvoy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema/fromkong"
)

var importCommand = &command{
	words: "import", args: "FILE ...",
	brief: "convert configs of Kong's own rate limiting plugins, or of envoyproxy/ratelimit (- reads standard input)",
	about: `In a decK file it converts the entries of rate-limiting, rate-limiting-advanced, response-ratelimiting and
ai-rate-limiting-advanced into entries of this plugin, and lists what will work otherwise. An entry with a value that
this plugin cannot express stays as it is, and so does one of another plugin of Kong that limits rates, such as
service-protection: then the exit code is 1. The converted file is written to standard output and the report to
standard error, or with -o FILE the report to standard output.

With --side-by-side Kong's plugins stay and go on enforcing, and the new entries count beside them in shadow mode. Later
the same command without it, on the original file, makes the new entries enforce; their counters go on.

With --envoy-config the files are the YAML of envoyproxy/ratelimit; those of one domain are merged. The converted file
then has a config with a tier for each rate limit, and the mapping for ratelimit serve --envoy-config is written beside
it. A rate limit that this plugin cannot express is left out.

Examples:
  ratelimit import kong.yml --side-by-side -o kong-shadow.yml
  ratelimit import kong.yml -o kong-new.yml && ratelimit validate kong-new.yml
  ratelimit import config/*.yaml --envoy-config envoy-doors.yml --redis redis:6379 -o envoy-limits.yml`,
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
		c.check(func() error { return f.check(c.args) })
		return func(context.Context) error { return c.convert(f) }
	},
}

type importFlags struct {
	output, report, mapping string
	options                 fromkong.Options
}

func (f *importFlags) check(files []string) error {
	formats := []string{formatTable, formatJSON, formatYAML}
	switch {
	case len(files) > 1 && f.mapping == "":
		return wrong("unexpected argument %q: only with --envoy-config are several files converted", files[1])
	case !slices.Contains(formats, f.report):
		return wrong("--report must be table, json or yaml, got %q", f.report)
	case slices.Contains(formats, f.output):
		return wrong("-o names the file to write here; for the format of the report use --report %s", f.output)
	case f.output != "" && filepath.Clean(f.output) == filepath.Clean(f.mapping):
		return wrong("-o and --envoy-config must name different files, got %s for both", f.output)
	}
	return cmp.Or(notRead("-o", f.output, files...), notRead("--envoy-config", f.mapping, files...))
}

func (c *call) convert(f *importFlags) error {
	f.options.Checks = []schema.Check{routeconfig.Compiles}
	var files []fromenvoy.File
	for _, file := range c.args {
		text, name, err := c.readAll(file)
		if err != nil {
			return wrong("%v", err)
		}
		files = append(files, fromenvoy.File{Name: name, Text: text})
	}
	result, err := convert(files, f)
	if err != nil {
		return err
	}
	if err := c.writeConverted(f, result); err != nil {
		return err
	}
	if result.Converted() < len(result.Entries) {
		return exitStatus(exitFailed)
	}
	return nil
}

// convert converts files of the kind that the flags name.
func convert(files []fromenvoy.File, f *importFlags) (*fromkong.Result, error) {
	if f.mapping != "" {
		return fromenvoy.Convert(files, f.options)
	}
	result, err := fromkong.Convert(files[0].Text, f.options)
	if err != nil {
		err = fmt.Errorf("%s: %w", files[0].Name, err)
	}
	return result, err
}

// writeConverted writes the files and the report. The converted file goes to standard output as it is, because a screen
// would replace its tabs.
func (c *call) writeConverted(f *importFlags, result *fromkong.Result) error {
	reporter := *c
	reporter.format = f.report
	if f.mapping != "" {
		if err := os.WriteFile(f.mapping, result.Mapping, 0o644); err != nil {
			return fmt.Errorf("--envoy-config: %w", err)
		}
	}
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
	report := importReport{Result: result, Differences: differencesOf(result)}
	return reporter.print(report, func(out *page) { report.writeTo(out, strings.Join(c.args, ", ")) })
}

type importReport struct {
	*fromkong.Result
	Differences []fromkong.Text `json:"differences"` // of all entries
}

func differencesOf(result *fromkong.Result) []fromkong.Text {
	all := slices.Concat(fromkong.Differences(), fromenvoy.Differences())
	return slices.DeleteFunc(all, func(text fromkong.Text) bool {
		has := func(e fromkong.Entry) bool { return slices.Contains(e.Differences, text.ID) }
		return !slices.ContainsFunc(result.Entries, has)
	})
}

// writeTo adds what became of each entry, and what will work otherwise.
func (r *importReport) writeTo(out *page, files string) {
	for _, e := range r.Entries {
		out.show(e)
		out.gap()
	}
	for _, d := range r.Differences {
		out.show(d)
		out.gap()
	}
	out.line("%s: %d of %s converted", files, r.Converted(), plural(len(r.Entries), "entry", "entries"))
}
