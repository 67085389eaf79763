// Package fromenvoy converts the config of envoyproxy/ratelimit into a config of this plugin, with a tier for each rate
// limit, and a mapping for Envoy's protocol, whose rules name these tiers (package plugin/control/envoy).
//
// Convert never guesses: a rate limit that cannot be expressed is left out, with a Problem that names the field. What
// works otherwise is listed as a Difference. What envoyproxy/ratelimit does is taken from its source (src/config).
package fromenvoy

import (
	"bytes"
	"cmp"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"

	"gopkg.in/yaml.v3"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema/deck"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema/fromkong"
)

const noLimits = "unlimited" // the tier without limits; the others have a dot in their names

// head begins the converted file. Its verbs take what the options set, and the name noLimits.
const head = `_format_version: "3.0"
plugins:
  - name: tenant-rate-limiting
    config:
      namespace: envoy
      on_missing_tenant: skip
      %s
      tiers:
        - {name: %s, limits: []}
`

// seconds has the length of each unit.
var seconds = map[string]int64{
	"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 7 * 86400, "month": 30 * 86400, "year": 365 * 86400,
}
var unnamed = regexp.MustCompile(`[^A-Za-z0-9._-]`) // what no name of a limit may have

//go:embed differences.yml
var differencesFile []byte

// Differences returns the texts of all differences, in the order of reports.
var Differences = sync.OnceValue(func() []fromkong.Text { return fromkong.ParseDifferences(differencesFile) })

// File is a config file: one document, or several.
type File struct {
	Name string
	Text []byte
}

type document struct {
	Domain      string
	Descriptors []descriptor
}

type descriptor struct {
	Key            key
	Value          string
	RateLimit      *rateLimit `yaml:"rate_limit"`
	Descriptors    []descriptor
	ShadowMode     bool           `yaml:"shadow_mode"`
	QuotaMode      bool           `yaml:"quota_mode"`
	DetailedMetric bool           `yaml:"detailed_metric"`
	ValueToMetric  bool           `yaml:"value_to_metric"`
	ShareThreshold bool           `yaml:"share_threshold"`
	Metadata       map[string]any `yaml:"metadata"`

	file, path string // path is from the root of its document
}

type rateLimit struct {
	Unit            string
	RequestsPerUnit uint32 `yaml:"requests_per_unit"`
	Unlimited       bool
	Name            string
	Replaces        []struct{ Name string }
}

// key is a text that knows its line.
type key struct {
	text string
	line int
}

// UnmarshalYAML implements yaml.Unmarshaler.
func (k *key) UnmarshalYAML(node *yaml.Node) error {
	k.line = node.Line
	return node.Decode(&k.text)
}

// The mapping that is written.
type (
	rule struct {
		Entries []string `yaml:",flow"`
		Tier    string
		Tenant  string `yaml:",omitempty"`
	}
	domain struct{ Rules []rule }
)

type conversion struct {
	shared  bool              // counters are in Redis
	tiers   bytes.Buffer      // the converted ones, in YAML
	names   map[string]bool   // of the tiers
	places  map[string]string // of descriptors, by what they are for: a.yaml:7
	domains map[string]domain
	entries []fromkong.Entry
}

// Convert converts config files, of which those of one domain are merged. The text of the result is a decK file with
// the converted config. An error is about the files as a whole.
func Convert(files []File, o fromkong.Options) (*fromkong.Result, error) {
	c := &conversion{shared: o.Redis != "", domains: map[string]domain{}, entries: []fromkong.Entry{}}
	c.names, c.places = map[string]bool{}, map[string]string{}
	settings := "strategy: local"
	if host, port, ok := fromkong.SplitAddress(o.Redis); ok {
		settings = fmt.Sprintf("strategy: redis\n      redis: {host: %q, port: %d}", host, port)
	} else if c.shared {
		return nil, fmt.Errorf("--redis must be HOST:PORT, got %q", o.Redis)
	}
	if o.SideBySide {
		settings = "mode: shadow\n      " + settings
	}
	merged := map[string][]descriptor{}
	for _, f := range files {
		if err := f.read(merged); err != nil {
			return nil, fmt.Errorf("%s: is no config of envoyproxy/ratelimit: %w", f.Name, err)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(merged)) {
		c.walk(name, nil, merged[name])
	}
	slices.SortStableFunc(c.entries, func(a, b fromkong.Entry) int {
		return cmp.Or(strings.Compare(a.File, b.File), a.Line-b.Line)
	})
	text := append(fmt.Appendf(nil, head, settings, noLimits), c.tiers.Bytes()...)
	for _, fault := range deck.Validate(bytes.NewReader(text), "the converted config", o.Checks...) {
		if fault.Severity == deck.Error {
			return nil, errors.New(fault.String())
		}
	}
	var mapping bytes.Buffer
	encoder := yaml.NewEncoder(&mapping)
	encoder.SetIndent(2)
	err := encoder.Encode(map[string]any{"domains": c.domains})
	return &fromkong.Result{Text: text, Mapping: mapping.Bytes(), Entries: c.entries}, err
}

// read adds the descriptors of a file to those of its domains.
func (f *File) read(merged map[string][]descriptor) error {
	decoder := yaml.NewDecoder(bytes.NewReader(f.Text))
	decoder.KnownFields(true)
	for {
		var d document
		if err := decoder.Decode(&d); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if d.Domain == "" {
			return errors.New("domain: is required in each document")
		}
		place(d.Descriptors, f.Name, "descriptors")
		merged[d.Domain] = append(merged[d.Domain], d.Descriptors...)
	}
}

// place sets where descriptors are.
func place(list []descriptor, file, path string) {
	for i := range list {
		list[i].file, list[i].path = file, fmt.Sprintf("%s[%d]", path, i)
		place(list[i].Descriptors, file, list[i].path+".descriptors")
	}
}

// walk converts a list of descriptors of a domain, below those that contain it.
func (c *conversion) walk(name string, above []descriptor, list []descriptor) {
	// Rules are tried in order: values before patterns, and these before keys alone.
	slices.SortStableFunc(list, func(a, b descriptor) int { return a.generality() - b.generality() })
	for i, e := range list {
		// Whether a call that fits this one, and none nested in it, may fit one after it.
		hasFallback := slices.ContainsFunc(list[i+1:], func(other descriptor) bool {
			return other.Key.text == e.Key.text && other.generality() > 0 && len(other.Descriptors) > 0
		})
		whole := append(slices.Clip(above), e)
		c.convert(name, whole, hasFallback)
		c.walk(name, whole, e.Descriptors)
	}
}

func (e *descriptor) generality() int {
	switch {
	case e.Value == "":
		return 2
	case strings.Contains(e.Value, "*"):
		return 1
	}
	return 0
}

// convert adds the rule of a descriptor, which is the last of whole, its tier and its report.
func (c *conversion) convert(name string, whole []descriptor, hasFallback bool) {
	e := whole[len(whole)-1]
	r := rule{Tier: noLimits}
	for _, part := range whole {
		entry := part.Key.text
		if part.Value != "" {
			entry += "=" + part.Value
		}
		r.Entries = append(r.Entries, entry)
	}
	report := fromkong.Entry{
		Plugin: "envoyproxy/ratelimit", File: e.file, Line: e.Key.line, Path: e.path,
		For:    name + ": " + strings.Join(r.Entries, ", "),
		Limits: []string{}, Differences: []fromkong.Difference{},
	}
	report.Problems = c.problems(whole, &r, report.For)
	report.Converted = len(report.Problems) == 0
	if report.Converted {
		if l := e.RateLimit; l != nil && !l.Unlimited {
			r.Tier = c.addTier(name+"."+strings.Join(r.Entries, "."), &e)
			report.Limits = []string{fmt.Sprintf("%s: %d per %s", r.Tier, l.RequestsPerUnit, strings.ToLower(l.Unit))}
		}
		report.Differences = c.differences(&e, r.Entries, hasFallback)
		d := c.domains[name]
		d.Rules = append(d.Rules, r)
		c.domains[name] = d
	}
	if e.RateLimit != nil || len(e.Descriptors) == 0 || !report.Converted || hasFallback {
		c.entries = append(c.entries, report)
	}
}

// addTier adds the tier of a rate limit, and returns its name, which is the limit's too.
func (c *conversion) addTier(text string, e *descriptor) string {
	name := unnamed.ReplaceAllString(strings.ReplaceAll(text, "=", "_"), "-")
	name = name[:min(len(name), 56)]
	unique := name
	for n := 2; c.names[unique]; n++ {
		unique = fmt.Sprintf("%s-%d", name, n)
	}
	c.names[unique] = true
	mode := ""
	if e.ShadowMode {
		mode = ", mode: shadow"
	}
	fmt.Fprintf(&c.tiers, "        - name: %q\n          limits: [{name: %[1]q, scope: tenant, limit: %d, "+
		"window_size: %d, algorithm: fixed_window%s}]\n",
		unique, e.RateLimit.RequestsPerUnit, seconds[strings.ToLower(e.RateLimit.Unit)], mode)
	return unique
}

// problems returns why a descriptor, the last of whole, cannot be converted, given what it is for. It sets the tenant
// of the rule where all values of a pattern share a limit.
func (c *conversion) problems(whole []descriptor, r *rule, of string) []fromkong.Problem {
	e, found := whole[len(whole)-1], []fromkong.Problem{}
	add := func(is bool, format string, args ...any) {
		if is {
			text := fmt.Sprintf(format, args...)
			found = append(found, fromkong.Problem{Line: e.Key.line, Path: e.path, Message: text})
		}
	}
	first, key := c.places[of], e.Key.text
	c.places[of] = cmp.Or(first, fmt.Sprintf("%s:%d", e.file, e.Key.line))
	add(first != "", "key: %s has this key and value too, and envoyproxy/ratelimit takes only one: join them", first)
	add(key == "" || strings.ContainsAny(key, "=*"), "key: %q, must be a text without = and *", key)
	add(e.ShareThreshold && !strings.Contains(e.Value, "*"), "share_threshold: needs a value with *")
	if slices.ContainsFunc(whole, func(part descriptor) bool { return part.ShareThreshold }) {
		r.Tenant = strings.Join(r.Entries, "&")
		varies := func(part descriptor) bool { return part.generality() > 0 && !part.ShareThreshold }
		add(slices.ContainsFunc(whole, varies), "share_threshold: "+
			"one bucket for all values of an entry, and one for each value of another, is not possible")
	}
	l := e.RateLimit
	if l == nil {
		return found
	}
	add(e.QuotaMode, "quota_mode: denies a call when all its quotas are spent, and this plugin when one limit is")
	known := seconds[strings.ToLower(l.Unit)] > 0
	add(!l.Unlimited && !known, "rate_limit.unit: %q, must be second, minute, hour, day, week, month or year", l.Unit)
	add(!l.Unlimited && l.RequestsPerUnit == 0, "rate_limit.requests_per_unit: 0, must be at least 1: "+
		"what it denied is admitted now, or limited by the next rule that fits: deny these requests in Envoy")
	add(l.Unlimited && known, "rate_limit.unit: must be absent beside unlimited")
	return found
}

// differences returns what works otherwise for a descriptor, in the order of reports.
func (c *conversion) differences(e *descriptor, entries []string, hasFallback bool) []fromkong.Difference {
	l, found := e.RateLimit, []fromkong.Difference{}
	counts := l != nil && !l.Unlimited
	isInner := func(entry string) bool { return strings.Contains(strings.TrimSuffix(entry, "*"), "*") }
	has := map[fromkong.Difference]bool{
		"envoy-counters": counts, "envoy-all-or-none": counts, "envoy-override": counts,
		"envoy-replaces": l != nil && len(l.Replaces) > 0, "envoy-fallback": hasFallback,
		"envoy-unlimited": l != nil && (l.Unlimited || e.ShadowMode),
		"envoy-local":     counts && !c.shared, "envoy-wildcard": slices.ContainsFunc(entries, isInner),
		"envoy-metrics": e.DetailedMetric || e.ValueToMetric, "envoy-metadata": len(e.Metadata) > 0,
	}
	for _, text := range Differences() {
		if has[text.ID] {
			found = append(found, text.ID)
		}
	}
	return found
}
