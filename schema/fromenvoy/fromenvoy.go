// Package fromenvoy converts the config of envoyproxy/ratelimit into a config of this plugin, with a tier for each rate
// limit, and a mapping for Envoy's protocol, whose rules name these tiers (package plugin/control/envoy).
//
// Convert never guesses: a rate limit that cannot be expressed is left out, with a Problem that names the field. What
// works otherwise is listed as a Difference. What envoyproxy/ratelimit does is taken from its source (src/config).
package fromenvoy

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	"gopkg.in/yaml.v3"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema/deck"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema/fromkong"
)

// Namespace is the namespace of converted configs.
const Namespace = "envoy"

const noLimits = "unlimited" // the tier without limits; the others have a dot in their names

// seconds has the length of each unit.
var seconds = map[string]int64{
	"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 7 * 86400, "month": 30 * 86400, "year": 365 * 86400,
}

//go:embed differences.yml
var differencesFile []byte

// Differences returns the texts of all differences, in the order of reports.
var Differences = sync.OnceValue(func() []fromkong.Text { return fromkong.ParseDifferences(differencesFile) })

// file is one document.
type file struct {
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

	path string // from the root of its document
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

// The files that are written.
type (
	limit struct {
		Name       string
		Scope      string
		Limit      int64
		WindowSize int64 `yaml:"window_size"`
		Algorithm  string
		Mode       string `yaml:",omitempty"`
	}
	tier struct {
		Name   string
		Limits []limit `yaml:",flow"`
	}
	redis struct {
		Host string
		Port int64
	}
	config struct {
		Namespace string
		OnMissing string `yaml:"on_missing_tenant"`
		Mode      string `yaml:",omitempty"`
		Strategy  string
		Redis     *redis `yaml:",omitempty"`
		Tiers     []tier
	}
	plugin struct {
		Name   string
		Config config
	}
	rule struct {
		Entries []string `yaml:",flow"`
		Tier    string
		Tenant  string `yaml:",omitempty"`
	}
	domain struct{ Rules []rule }
)

type conversion struct {
	config  config
	domains map[string]domain
	entries []fromkong.Entry
}

// Convert converts the text of config files, one document for each. It returns a decK file with the converted config,
// and the mapping. An error is about the files as a whole.
func Convert(text []byte, o fromkong.Options) (result *fromkong.Result, mapping []byte, err error) {
	c := &conversion{domains: map[string]domain{}, entries: []fromkong.Entry{}}
	c.config = config{
		Namespace: Namespace, OnMissing: schema.MissingTenantSkip, Strategy: schema.StrategyLocal,
		Tiers: []tier{{Name: noLimits, Limits: []limit{}}},
	}
	if o.SideBySide {
		c.config.Mode = schema.ModeShadow
	}
	if o.Redis != "" {
		host, port, ok := fromkong.SplitAddress(o.Redis)
		if !ok {
			return nil, nil, fmt.Errorf("--redis must be HOST:PORT, got %q", o.Redis)
		}
		c.config.Strategy, c.config.Redis = schema.StrategyRedis, &redis{host, port}
	}
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	decoder.KnownFields(true)
	for {
		var f file
		if err := decoder.Decode(&f); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, nil, fmt.Errorf("is no config of envoyproxy/ratelimit: %w", err)
		}
		if f.Domain == "" {
			return nil, nil, errors.New("is no config of envoyproxy/ratelimit: domain: is required in each document")
		}
		c.walk(f.Domain, nil, "descriptors", f.Descriptors)
	}
	whole := struct {
		Version string `yaml:"_format_version"`
		Plugins []plugin
	}{"3.0", []plugin{{schema.Name, c.config}}}
	slices.SortStableFunc(c.entries, func(a, b fromkong.Entry) int { return a.Line - b.Line })
	result = &fromkong.Result{Entries: c.entries}
	if result.Text, err = encode(whole); err != nil {
		return nil, nil, err
	}
	for _, fault := range deck.Validate(bytes.NewReader(result.Text), "the converted config", o.Checks...) {
		if fault.Severity == deck.Error {
			return nil, nil, errors.New(fault.String())
		}
	}
	mapping, err = encode(map[string]any{"domains": c.domains})
	return result, mapping, err
}

func encode(v any) ([]byte, error) {
	var out bytes.Buffer
	encoder := yaml.NewEncoder(&out)
	encoder.SetIndent(2)
	err := errors.Join(encoder.Encode(v), encoder.Close())
	return out.Bytes(), err
}

// walk converts a list of descriptors of a domain, below those that contain it.
func (c *conversion) walk(name string, above []descriptor, path string, list []descriptor) {
	for i := range list {
		list[i].path = fmt.Sprintf("%s[%d]", path, i)
	}
	// Rules are tried in order: values before patterns, and these before keys alone.
	slices.SortStableFunc(list, func(a, b descriptor) int { return a.generality() - b.generality() })
	for i, e := range list {
		whole := append(slices.Clip(above), e)
		c.convert(name, whole, hasFallback(list[i:]))
		c.walk(name, whole, e.path+".descriptors", e.Descriptors)
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

// hasFallback reports whether a call that fits the first descriptor, and none nested in it, may fit one of the others.
func hasFallback(list []descriptor) bool {
	return slices.ContainsFunc(list[1:], func(other descriptor) bool {
		return other.Key.text == list[0].Key.text && other.generality() > 0 &&
			(len(other.Descriptors) > 0 || len(list[0].Descriptors) > 0)
	})
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
		Plugin: "envoyproxy/ratelimit", Line: e.Key.line, Path: e.path,
		For:    name + ": " + strings.Join(r.Entries, ", "),
		Limits: []string{}, Problems: []fromkong.Problem{}, Differences: []fromkong.Difference{},
	}
	for _, problem := range problems(whole, &r) {
		report.Problems = append(report.Problems, fromkong.Problem{Line: e.Key.line, Path: e.path, Message: problem})
	}
	report.Converted = len(report.Problems) == 0
	if report.Converted {
		if e.RateLimit != nil && !e.RateLimit.Unlimited {
			r.Tier = c.addTier(name+"."+strings.Join(r.Entries, "."), &e)
			unit := strings.ToLower(e.RateLimit.Unit)
			report.Limits = append(report.Limits, fmt.Sprintf("%s: %d per %s", r.Tier, e.RateLimit.RequestsPerUnit, unit))
		}
		report.Differences = differences(&e, hasFallback)
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
	name := strings.Map(func(r rune) rune {
		switch {
		case r == '=':
			return '_'
		case r < 128 && (r == '.' || r == '-' || r == '_' || r >= '0' && r <= '9' || r|32 >= 'a' && r|32 <= 'z'):
			return r
		}
		return '-'
	}, text)
	name = name[:min(len(name), 56)]
	unique := name
	for n := 2; slices.ContainsFunc(c.config.Tiers, func(t tier) bool { return t.Name == unique }); n++ {
		unique = fmt.Sprintf("%s-%d", name, n)
	}
	l := limit{
		Name: unique, Scope: schema.ScopeTenant, Limit: int64(e.RateLimit.RequestsPerUnit),
		WindowSize: seconds[strings.ToLower(e.RateLimit.Unit)], Algorithm: schema.AlgorithmFixedWindow,
	}
	if e.ShadowMode {
		l.Mode = schema.ModeShadow
	}
	c.config.Tiers = append(c.config.Tiers, tier{unique, []limit{l}})
	return unique
}

// problems returns why a descriptor, the last of whole, cannot be converted. It sets the tenant of the rule where all
// values of a pattern share a limit.
func problems(whole []descriptor, r *rule) (found []string) {
	e := whole[len(whole)-1]
	add := func(is bool, format string, args ...any) {
		if is {
			found = append(found, fmt.Sprintf(format, args...))
		}
	}
	key := e.Key.text
	add(key == "" || strings.ContainsAny(key, "=*"), "key: %q, must be a text without = and *", key)
	add(e.ShareThreshold && !strings.Contains(e.Value, "*"), "share_threshold: needs a value with *")
	add(e.QuotaMode, "quota_mode: denies a call when all its quotas are spent, and this plugin when one limit is")
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
	known := seconds[strings.ToLower(l.Unit)] > 0
	add(!l.Unlimited && !known, "rate_limit.unit: %q, must be second, minute, hour, day, week, month or year", l.Unit)
	add(!l.Unlimited && l.RequestsPerUnit == 0, "rate_limit.requests_per_unit: 0, must be at least 1: "+
		"to deny a caller, ban its tenant (ratelimit override add --kind ban), or deny the request in Envoy")
	add(l.Unlimited && known, "rate_limit.unit: must be absent beside unlimited")
	return found
}

// differences returns what works otherwise for a descriptor, in the order of reports.
func differences(e *descriptor, hasFallback bool) []fromkong.Difference {
	l, found := e.RateLimit, []fromkong.Difference{}
	counts := l != nil && !l.Unlimited
	has := map[fromkong.Difference]bool{
		"envoy-counters": counts, "envoy-all-or-none": counts, "envoy-override": counts,
		"envoy-replaces": l != nil && len(l.Replaces) > 0, "envoy-fallback": hasFallback,
		"envoy-unlimited": l != nil && l.Unlimited,
		"envoy-metrics":   e.DetailedMetric || e.ValueToMetric, "envoy-metadata": len(e.Metadata) > 0,
	}
	for _, text := range Differences() {
		if has[text.ID] {
			found = append(found, text.ID)
		}
	}
	return found
}
