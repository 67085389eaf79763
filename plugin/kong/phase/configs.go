package phase

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/kong/wire"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// Build makes the decider of a config that has no faults. release is called when no instance uses the decider any more;
// it may be nil.
type Build func(schema.Config, *resolve.Plan) (decider *admit.Decider, release func(), err error)

// compiled holds the parts that all instances of one config share, in all workers. It is immutable.
type compiled struct {
	hash     [sha256.Size]byte // of the config without the fields that differ between workers
	pluginID string
	decider  *admit.Decider // nil: the config has faults, and there was no good one before
	deny     bool           // on_config_fault, if decider is nil
	headers  *headerCache   // the questions that the decider's rules need
	traces   bool           // log_decisions
	config   *schema.Config // nil if the decider is the one of an earlier config
	uses     *uses          // of decider

	definitions map[string]*policy.Policy // by tier, name and endpoint
}

// uses counts the users of a decider: the configs that it answers, and a plugin for which it is the last good decider.
type uses struct {
	n       int
	release func()
}

func (u *uses) add(n int) {
	if u == nil {
		return
	}
	if u.n += n; u.n == 0 && u.release != nil {
		u.release()
	}
}

// configs compiles each config once, for as long as it has instances.
type configs struct {
	build   Build
	log     *slog.Logger
	elapsed func() time.Duration // the server's clock

	faults, panics atomic.Uint64 // of compilations

	mu        sync.Mutex // held while an instance starts or closes; guards the fields below
	instances map[*instance]struct{}
	bySum     map[[sha256.Size]byte]*compiled
	counts    map[*compiled]int    // instances of a config
	lastGood  map[string]*compiled // by plugin id, while it has instances
	plugins   map[string]int       // instances of a plugin id
	reported  map[string]struct{}  // conflicts that were logged
}

func newConfigs(build Build, log *slog.Logger, elapsed func() time.Duration) *configs {
	return &configs{
		elapsed: elapsed, build: build, log: log,
		instances: map[*instance]struct{}{}, bySum: map[[sha256.Size]byte]*compiled{}, counts: map[*compiled]int{},
		lastGood: map[string]*compiled{}, plugins: map[string]int{}, reported: map[string]struct{}{},
	}
}

// startInstance starts the instance of a config for package wire.
func (r *configs) startInstance(config wire.Config) wire.Instance {
	in := r.start(config)
	return wire.Instance{Access: in.access, Fault: in.fault, Close: func() { r.close(in) }}
}

// start starts an instance. A config with faults is answered by the last good config of the same plugin while that has
// instances, else as its on_config_fault says.
func (r *configs) start(config wire.Config) *instance {
	sum := sha256.Sum256(config.Common)
	r.mu.Lock()
	defer r.mu.Unlock()
	in := &instance{
		configs: r, routeScoped: config.RouteID != "", compiled: r.compileOnce(sum, config.PluginID, config.JSON),
	}
	in.usedAt.Store(int64(r.elapsed()))
	r.instances[in] = struct{}{}
	r.counts[in.compiled]++
	r.plugins[in.pluginID]++
	return in
}

// close removes an instance, and its config and plugin if no other instance uses them.
func (r *configs) close(in *instance) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.instances, in)
	if r.counts[in.compiled]--; r.counts[in.compiled] == 0 {
		delete(r.counts, in.compiled)
		delete(r.bySum, in.hash)
		in.uses.add(-1)
	}
	if r.plugins[in.pluginID]--; r.plugins[in.pluginID] == 0 {
		delete(r.plugins, in.pluginID)
		r.setLastGood(in.pluginID, nil)
	}
}

// setLastGood makes c the last good config of a plugin; nil removes it. A config without a plugin id, which Kong always
// gives, is the last good one of no plugin.
func (r *configs) setLastGood(pluginID string, c *compiled) {
	if pluginID == "" {
		return
	}
	if c != nil {
		c.uses.add(1)
	}
	if previous := r.lastGood[pluginID]; previous != nil {
		previous.uses.add(-1)
	}
	if r.lastGood[pluginID] = c; c == nil {
		delete(r.lastGood, pluginID)
	}
}

// compileOnce compiles a config, unless it has instances already.
func (r *configs) compileOnce(sum [sha256.Size]byte, pluginID string, raw []byte) *compiled {
	if c := r.bySum[sum]; c != nil {
		if c.config != nil {
			r.setLastGood(pluginID, c) // another config may have replaced it since
		}
		return c
	}
	c, err := r.compile(pluginID, raw)
	if err != nil {
		r.faults.Add(1)
		c = r.substitute(pluginID, raw, err)
	} else {
		r.setLastGood(pluginID, c)
	}
	c.uses.add(1)
	c.hash = sum
	r.bySum[sum] = c
	return c
}

// compile compiles a config. A panic is a fault of the config: if it ended the process, Kong would start the process
// again with the same config.
func (r *configs) compile(pluginID string, raw []byte) (c *compiled, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			r.panics.Add(1)
			r.log.Error("compiling a config panicked",
				"plugin_id", pluginID, "panic", fmt.Sprint(cause), "stack", string(debug.Stack()))
			c, err = nil, fmt.Errorf("the plugin cannot compile this config: %v", cause)
		}
	}()
	var plan *resolve.Plan
	config, warnings, err := schema.Parse(raw, func(c schema.Config) (err error) {
		plan, err = resolve.FromConfig(c)
		return err
	})
	if err != nil {
		return nil, err
	}
	decider, release, err := r.build(config, plan)
	if err != nil {
		return nil, err
	}
	for _, w := range warnings {
		r.log.Warn("config warning", "plugin_id", pluginID, "path", w.Path, "warning", w.Message)
	}
	c = &compiled{
		pluginID: pluginID, decider: decider, headers: new(headerCache), traces: config.LogDecisions,
		config: &config, uses: &uses{release: release}, definitions: map[string]*policy.Policy{},
	}
	for _, p := range plan.Policies() {
		c.definitions[p.Tier+"/"+p.Name+"/"+p.Endpoint] = p
	}
	r.reportConflicts(c)
	return c, nil
}

// substitute returns the config that answers in place of one with faults.
func (r *configs) substitute(pluginID string, raw []byte, faults error) *compiled {
	if good := r.lastGood[pluginID]; good != nil {
		r.log.Error("config has faults; the last good one stays in force", "plugin_id", pluginID, "faults", faultList(faults))
		substitute := *good
		substitute.config = nil
		return &substitute
	}
	deny, action := onConfigFault(raw), "requests are admitted unlimited (on_config_fault: open)"
	if deny {
		action = "requests are denied (on_config_fault: closed, or usage_only)"
	}
	r.log.Error("config has faults and there is no earlier good one; "+action,
		"plugin_id", pluginID, "faults", faultList(faults))
	return &compiled{pluginID: pluginID, deny: deny}
}

// onConfigFault reports whether requests of a config with faults are denied. It reads two fields without the others,
// which have the faults. A config that only shows usage admits nothing.
func onConfigFault(raw []byte) (deny bool) {
	var fields struct {
		OnConfigFault string `json:"on_config_fault"`
		UsageOnly     bool   `json:"usage_only"`
	}
	return json.Unmarshal(raw, &fields) == nil && (fields.UsageOnly || fields.OnConfigFault == schema.FailClosed)
}

// faultList returns the faults for a log line, which must not grow with the config.
func faultList(err error) []string {
	const limit = 50
	faults := strings.Split(err.Error(), "\n")
	if more := len(faults) - limit; more > 0 {
		faults = append(faults[:limit], fmt.Sprintf("and %d more", more))
	}
	return faults
}

// Kong does not close the instances of a plugin config that is deleted. An instance without an event for unusedAfter
// therefore does not count for the conflicts of definitions. Its next event compares its definitions again.
const (
	unusedAfter = 10 * time.Minute
	useStep     = time.Minute // the precision of an instance's last use
)

// maxReported bounds the conflicts that are logged.
const maxReported = 1000

// recordUse records that an instance has an event at now.
func (r *configs) recordUse(in *instance, now time.Duration) {
	idle := now - time.Duration(in.usedAt.Load())
	if idle < useStep {
		return
	}
	if idle > unusedAfter && in.config != nil {
		if !r.mu.TryLock() {
			return // an instance starts or closes; the next event tries again
		}
		defer r.mu.Unlock()
		r.reportConflicts(in.compiled)
	}
	in.usedAt.Store(int64(now))
}

// inUse returns the configs that had an event or a start within unusedAfter.
func (r *configs) inUse() map[*compiled]bool {
	now, used := r.elapsed(), map[*compiled]bool{}
	for in := range r.instances {
		if now-time.Duration(in.usedAt.Load()) <= unusedAfter {
			used[in.compiled] = true
		}
	}
	return used
}

// reportConflicts logs, once, that a config defines a policy otherwise than a config of another plugin in use. Both
// spend from the same buckets, each with its own limit.
func (r *configs) reportConflicts(c *compiled) {
	for other := range r.inUse() {
		if other.config == nil || other.pluginID == c.pluginID || other.config.Namespace != c.config.Namespace {
			continue
		}
		for name, p := range c.definitions {
			if q := other.definitions[name]; q != nil && !sameDefinition(p, q) {
				r.reportConflict(c, other, p, q)
			}
		}
	}
}

// sameDefinition reports whether two policies limit alike.
func sameDefinition(p, q *policy.Policy) bool {
	return p.Scope == q.Scope && p.Limit.Spec() == q.Limit.Spec() && p.Leasable() == q.Leasable() && settlesAlike(p, q) &&
		(p.Fair == q.Fair || p.Fair != nil && q.Fair != nil && p.Fair.Record.Equal(q.Fair.Record))
}

// settlesAlike reports whether two policies charge alike what a request has really used.
func settlesAlike(p, q *policy.Policy) bool {
	if p.Settle == nil || q.Settle == nil {
		return p.Settle == q.Settle
	}
	return p.Unit == q.Unit && p.Settle.Match().Equal(q.Settle.Match()) &&
		p.Settle.Spec().Describe(p.Unit) == q.Settle.Spec().Describe(q.Unit)
}

// accuracyOf returns the accuracy of a policy in words: what settles is exact, whatever the config says.
func accuracyOf(p *policy.Policy) string {
	if p.Settle != nil {
		return policy.Exact.String()
	}
	return p.Accuracy.String()
}

// reportConflict logs that config c defines p, and config other q, which have the same buckets.
func (r *configs) reportConflict(c, other *compiled, p, q *policy.Policy) {
	text := fmt.Sprintf("%s: %s, %s in plugin %s, %s, %s in plugin %s",
		p.Name, p.Describe(), accuracyOf(p), c.pluginID, q.Describe(), accuracyOf(q), other.pluginID)
	if _, ok := r.reported[text]; ok || len(r.reported) >= maxReported {
		return
	}
	r.reported[text] = struct{}{}
	r.log.Warn("two configs define one policy differently; "+
		"they share its buckets, each with its own limit (set namespace to keep them apart)",
		"policy", p.Name, "tier", p.Tier, "definitions", text)
}
