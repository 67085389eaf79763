// Package deck checks the configs of the plugin in a decK file (Kong's declarative YAML) before they are deployed, and
// reports the line of each fault. It checks nothing else in the file: decK and Kong do that.
package deck

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/deckfile"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/docpath"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// Severity says whether a finding keeps a config from working.
type Severity string

// The severities.
const (
	Error   Severity = "error"   // the plugin denies the config
	Warning Severity = "warning" // the config works, but probably not as its author expects
)

// Finding is one fault or doubt about a file.
type Finding struct {
	File     string   `json:"-"`
	Line     int      `json:"line"`           // of the value, or of the mapping that lacks it; counted from 1
	Path     string   `json:"path,omitempty"` // from the root of the file: services[0].plugins[1].config.mode
	Severity Severity `json:"severity"`
	Message  string   `json:"message"`
}

func (f Finding) String() string {
	if f.Path == "" {
		return fmt.Sprintf("%s:%d: %s: %s", f.File, f.Line, f.Severity, f.Message)
	}
	return fmt.Sprintf("%s:%d: %s: %s: %s", f.File, f.Line, f.Severity, f.Path, f.Message)
}

// Validate reads a decK file and returns findings of each config of the plugin, at any level: top, service, route,
// consumer or consumer group. The findings are sorted by line. The checks are those of schema.Parse. file is only for
// the findings.
func Validate(r io.Reader, file string, checks ...schema.Check) []Finding {
	_, findings := ReadFile(r, file, checks...)
	return findings
}

// Config is a config of the plugin in a decK file.
type Config struct {
	schema.Config
	Place Place  // whose requests it is for
	Where string // file:line path
}

// File is what a decK file declares.
type File struct {
	Configs   []Config // that have no faults
	Documents []*Document
}

// ReadFile returns what a decK file declares, beside the findings of Validate.
func ReadFile(r io.Reader, file string, checks ...schema.Check) (File, []Finding) {
	v := validator{file: file, checks: checks, walk: deckfile.NewWalk(), first: map[limitKey]definition{}}
	documents, err := deckfile.Documents(r)
	for _, document := range documents {
		v.document(document)
	}
	if err != nil {
		v.unreadable(err)
	}
	if v.entries == 0 && len(v.findings) == 0 {
		v.report(1, "", Warning, "holds no config of the plugin "+schema.Name+": is it the decK file that you mean?")
	}
	slices.SortStableFunc(v.findings, func(a, b Finding) int { return cmp.Compare(a.Line, b.Line) })
	return v.declared, v.findings
}

type validator struct {
	file     string
	checks   []schema.Check
	declared File
	entries  int // plugin entries seen
	findings []Finding
	walk     *deckfile.Walk          // through all configs of the file
	first    map[limitKey]definition // of each limit
}

func (v *validator) report(line int, path string, severity Severity, message string) {
	v.findings = append(v.findings, Finding{v.file, line, path, severity, message})
}

// unreadable reports a syntax error; yaml.v3 puts the line into the text.
func (v *validator) unreadable(err error) {
	line, text := 1, strings.TrimPrefix(err.Error(), "yaml: ")
	if _, scanErr := fmt.Sscanf(text, "line %d:", &line); scanErr == nil {
		_, text, _ = strings.Cut(text, ": ")
	}
	v.report(line, "", Error, "is not YAML: "+text)
}

func (v *validator) document(document *yaml.Node) {
	declared, err := Read(document)
	if err != nil {
		v.report(1, "", Error, err.Error())
		return
	}
	v.declared.Documents = append(v.declared.Documents, declared)
	var settling []Place
	for _, p := range declared.Plugins {
		if p.Name == schema.SettlingName && p.Enabled {
			settling = append(settling, p.Place)
		}
	}
	for i := range declared.Plugins {
		if p := &declared.Plugins[i]; p.Name == schema.Name {
			v.entries++
			v.entry(p, settling)
		}
	}
}

func (v *validator) entry(e *Plugin, settling []Place) {
	config, err := e.Config(v.walk)
	if err != nil {
		v.report(e.configLine(), e.configPath(), Error, err.Error())
		return
	}
	for _, path := range config.Templates {
		v.report(config.Line(path), docpath.Join(e.configPath(), path), Warning,
			"comes from the environment when decK runs, so it is not checked")
	}
	parsed, warnings, err := schema.ParseNew(config.JSON, v.checks...)
	if err != nil {
		v.reportError(e, config, err)
		return
	}
	for _, w := range warnings {
		v.report(config.Line(w.Path), docpath.Join(e.configPath(), w.Path), Warning, w.Message)
	}
	where := fmt.Sprintf("%s:%d %s", v.file, config.Line(""), e.configPath())
	v.declared.Configs = append(v.declared.Configs, Config{parsed, e.Place, where})
	v.requireSettling(e, config, parsed, settling)
	v.compareDefinitions(e, config, parsed)
}

func (v *validator) reportError(e *Plugin, config deckfile.Config, err error) {
	faults, ok := errors.AsType[schema.Faults](err)
	if !ok {
		faults = schema.Faults{{Message: err.Error()}}
	}
	for _, f := range faults {
		if !slices.Contains(config.Templates, f.Path) {
			v.report(config.Line(f.Path), docpath.Join(e.configPath(), f.Path), Error, f.Message)
		}
	}
}

// limitKey identifies the limits that share their counters for one tenant, across configs. It includes the list (a
// tier, anonymous or global), because tiers define a limit of one name differently on purpose.
type limitKey struct{ namespace, list, name, endpoint string }

// definition is what changes the counting of a limit, in words, and where it stands.
type definition struct {
	text, where string
	line        int
}

// compareDefinitions warns if two configs of one namespace define one limit differently: they share its counter with
// different limits.
func (v *validator) compareDefinitions(e *Plugin, config deckfile.Config, c schema.Config) {
	for _, l := range c.Limits() {
		key := limitKey{c.Namespace, l.List, l.Name, l.Endpoint}
		here := definition{describe(l.Limit, c), docpath.Join(e.configPath(), l.Path), config.Line(l.Path)}
		first, ok := v.first[key]
		if !ok {
			v.first[key] = here
		} else if first.text != here.text {
			v.report(here.line, here.where, Warning, fmt.Sprintf(
				"defines limit %s of namespace %s otherwise than %s in line %d (%s there, %s here): both use the same counter; "+
					"give it another name, or one of the configs another namespace",
				l.Name, key.namespace, first.where, first.line, first.text, here.text))
		}
	}
}

// describe returns all that changes the counting of a limit, in words.
func describe(l schema.Limit, c schema.Config) string {
	text := fmt.Sprintf("%s per %s, %s", l.Rate(), l.Scope, l.Algorithm)
	if l.Capacity() != l.Limit {
		text += fmt.Sprintf(", burst %d", l.Capacity())
	}
	if l.SoftThresholdPct != 0 || l.HardThresholdPct != 0 || l.SoftOnly {
		text += fmt.Sprintf(", soft %d %%, hard %d %%, soft only %t", l.SoftThresholdPct, l.HardThresholdPct, l.SoftOnly)
	}
	if c.Strategy == schema.StrategyRedis && l.Capacity() >= schema.LeastLeased && l.Settle == nil {
		text += ", " + cmp.Or(l.Accuracy, c.Accuracy) // a leased limit has another capacity
	}
	if l.Settle != nil {
		text += ", " + l.Settle.Describe(l.Unit) + l.Match.Describe()
	}
	if l.Fair != nil {
		text += ", " + l.Fair.Describe()
	}
	return text
}
