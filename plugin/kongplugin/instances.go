package kongplugin

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

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// Build makes the path of a config that has no faults. release is called when no instance uses the path any more; it
// may be nil.
type Build func(schema.Config, *policy.Plan) (path *admit.Path, release func(), err error)

// instance is what Kong started with one __seq__: one plugin config in one worker.
type instance struct {
	id        int32
	startedAt int64 // Unix seconds
	*shared

	routeScoped bool
	route       atomic.Pointer[route] // learnt with an event of a route-scoped instance that needs it
	usedAt      atomic.Int64          // on the clock of instances, at most useStep before its last event
}

// route is what an instance has learnt of its route. It is asked for again after routeFresh: Kong starts an instance
// anew when its plugin's config changes, but not when the route gets another name or other protocols.
type route struct {
	name  string
	grpc  bool  // it has a gRPC protocol
	askAt int64 // when to ask again, on the clock of instances
}

const routeFresh = time.Minute

// shared is what all instances of one config have in common, in whatever worker. It is immutable.
type shared struct {
	hash     [sha256.Size]byte // of the config without what differs between workers
	pluginID string
	path     *admit.Path    // nil: no usable config is known
	refuse   bool           // on_config_fault, when path is nil
	headers  *headers       // that the path's rules read
	traces   bool           // put decisions into Kong's logs
	config   *schema.Config // nil when the path is not this config's own, which is faulty
	uses     *uses          // of path

	definitions map[string]*policy.Policy // by tier, name and endpoint
}

// uses counts who holds a path: the configs that are answered by it, and its being the last good one of its plugin.
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

// knowsRoute fills in the route from what the instance has learnt lately, and reports whether it could: then Kong need
// not be asked.
func (in *instance) knowsRoute(req *identity.Request, now int64) bool {
	learnt := in.route.Load()
	if learnt == nil || now >= learnt.askAt {
		return false
	}
	req.Route, req.GRPCRoute = learnt.name, learnt.grpc
	return true
}

// learnRoute keeps the route of a route-scoped instance, as Kong has answered at now. An empty one is not kept: then
// Kong could not say.
func (in *instance) learnRoute(req *identity.Request, now int64) {
	if !in.routeScoped || req.Route == "" {
		return
	}
	in.route.Store(&route{req.Route, req.GRPCRoute, now + int64(routeFresh)})
}

// instances keeps the instances that Kong started, each until Kong closes it, and compiles each config once.
type instances struct {
	build    Build
	log      *slog.Logger
	counters *Counters
	elapsed  func() int64 // nanoseconds since the process began

	mu   sync.RWMutex // guards byID, and is never held for long: every event reads it
	byID map[int32]*instance

	changing sync.Mutex // held while an instance starts or closes; guards what follows
	bySum    map[[sha256.Size]byte]*shared
	live     map[*shared]int    // how many instances use it
	lastGood map[string]*shared // by plugin id, while it has instances
	plugins  map[string]int     // how many instances a plugin id has
	told     map[string]struct{}
	ownID    int32
}

func newInstances(build Build, log *slog.Logger, counters *Counters, elapsed func() int64) *instances {
	return &instances{
		elapsed:  elapsed,
		build:    build,
		log:      log,
		counters: counters,
		byID:     map[int32]*instance{},
		bySum:    map[[sha256.Size]byte]*shared{},
		live:     map[*shared]int{},
		lastGood: map[string]*shared{},
		plugins:  map[string]int{},
		told:     map[string]struct{}{},
		ownID:    1 << 30,
	}
}

// get is the instance with an id; nil when there is none.
func (r *instances) get(id int32) *instance {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.byID[id]
}

// count is how many there are.
func (r *instances) count() int {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return len(r.byID)
}

// scope is what Kong adds to a config. A part of the wrong type is as good as absent.
type scope struct {
	Seq      *int32 // __seq__; nil when it is not there
	PluginID string // __plugin_id
	RouteID  string // route_id, of a route-scoped config
}

// start never fails: a config with faults is answered by the last good config of the same plugin while one is in
// force, else as its on_config_fault says.
func (r *instances) start(raw []byte) *instance {
	var s scope
	sum := sha256.Sum256(raw)
	var parts map[string]json.RawMessage
	if err := json.Unmarshal(raw, &parts); err == nil {
		s.decode(parts)
		delete(parts, "__seq__")
		if common, err := json.Marshal(parts); err == nil {
			sum = sha256.Sum256(common)
		}
	}
	r.changing.Lock()
	defer r.changing.Unlock()
	in := &instance{startedAt: time.Now().Unix(), routeScoped: s.RouteID != "", shared: r.share(sum, s.PluginID, raw)}
	in.usedAt.Store(r.elapsed())
	if s.Seq != nil && *s.Seq > 0 { // 0 is what Kong sends to all configs when it cannot count, and is absent on the wire
		in.id = *s.Seq
	} else {
		r.ownID++
		in.id = r.ownID
	}
	r.live[in.shared]++
	r.plugins[in.pluginID]++
	r.mu.Lock()
	replaced := r.byID[in.id]
	r.byID[in.id] = in
	r.mu.Unlock()
	r.release(replaced)
	return in
}

func (s *scope) decode(parts map[string]json.RawMessage) {
	var seq int32
	for name, target := range map[string]any{"__seq__": &seq, "__plugin_id": &s.PluginID, "route_id": &s.RouteID} {
		if part, ok := parts[name]; ok && json.Unmarshal(part, target) == nil && name == "__seq__" {
			s.Seq = &seq
		}
	}
}

// close forgets an instance, and what no other instance uses.
func (r *instances) close(id int32) {
	r.changing.Lock()
	defer r.changing.Unlock()
	r.mu.Lock()
	closed := r.byID[id]
	delete(r.byID, id)
	r.mu.Unlock()
	r.release(closed)
}

func (r *instances) release(in *instance) {
	if in == nil {
		return
	}
	if r.live[in.shared]--; r.live[in.shared] == 0 {
		delete(r.live, in.shared)
		delete(r.bySum, in.hash)
		in.uses.add(-1)
	}
	if r.plugins[in.pluginID]--; r.plugins[in.pluginID] == 0 {
		delete(r.plugins, in.pluginID)
		r.setLastGood(in.pluginID, nil)
	}
}

// setLastGood makes s the last good config of a plugin; nil forgets it. A config without a plugin's id (Kong gives one)
// stands for itself alone.
func (r *instances) setLastGood(pluginID string, s *shared) {
	if pluginID == "" {
		return
	}
	if s != nil {
		s.uses.add(1)
	}
	if previous := r.lastGood[pluginID]; previous != nil {
		previous.uses.add(-1)
	}
	if r.lastGood[pluginID] = s; s == nil {
		delete(r.lastGood, pluginID)
	}
}

// share compiles a config, or finds it compiled.
func (r *instances) share(sum [sha256.Size]byte, pluginID string, raw []byte) *shared {
	if known := r.bySum[sum]; known != nil {
		if known.config != nil {
			r.setLastGood(pluginID, known) // again: another may have been since
		}
		return known
	}
	made, err := r.compile(pluginID, raw)
	if err != nil {
		r.counters.ConfigFaults.Add(1)
		made = r.faulty(pluginID, raw, err)
	} else {
		r.setLastGood(pluginID, made)
	}
	made.uses.add(1)
	made.hash = sum
	r.bySum[sum] = made
	return made
}

// compile makes what answers a config. A panic in it is a fault of the config: it must not end the process, which Kong
// would start again with the same config.
func (r *instances) compile(pluginID string, raw []byte) (made *shared, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			r.counters.Panics.Add(1)
			r.log.Error("compiling a config panicked", "plugin_id", pluginID, "panic", fmt.Sprint(cause), "stack", string(debug.Stack()))
			made, err = nil, fmt.Errorf("the plugin cannot compile this config: %v", cause)
		}
	}()
	var snapshot *policy.Plan
	config, warnings, err := schema.Parse(raw, func(c schema.Config) (err error) {
		snapshot, err = policy.FromConfig(c)
		return err
	})
	if err != nil {
		return nil, err
	}
	path, release, err := r.build(config, snapshot)
	if err != nil {
		return nil, err
	}
	for _, w := range warnings {
		r.log.Warn("config warning", "plugin_id", pluginID, "path", w.Path, "warning", w.Message)
	}
	made = &shared{
		pluginID: pluginID,
		path:     path,
		headers:  new(headers),
		traces:   config.LogDecisions,
		config:   &config,
		uses:     &uses{release: release},
	}
	made.definitions = map[string]*policy.Policy{}
	for _, p := range snapshot.Policies() {
		made.definitions[p.Tier+"/"+p.Name+"/"+p.Endpoint] = p
	}
	r.tellConflicts(made)
	return made, nil
}

// faulty is what answers in the place of a config that cannot be used.
func (r *instances) faulty(pluginID string, raw []byte, faults error) *shared {
	if good := r.lastGood[pluginID]; good != nil {
		r.log.Error("config has faults; the last good one stays in force", "plugin_id", pluginID, "faults", faultList(faults))
		copied := *good
		copied.config = nil
		return &copied
	}
	// What the config says about its own faults is read without its other parts.
	var own struct {
		OnConfigFault string `json:"on_config_fault"`
	}
	closed := json.Unmarshal(raw, &own) == nil && own.OnConfigFault == schema.FailClosed
	action := "requests are admitted unlimited (on_config_fault: open)"
	if closed {
		action = "requests are denied (on_config_fault: closed)"
	}
	r.log.Error("config has faults and there is no earlier good one; "+action, "plugin_id", pluginID, "faults", faultList(faults))
	return &shared{pluginID: pluginID, refuse: closed}
}

// faultList is the faults for a log line, which must not grow with the config.
func faultList(err error) []string {
	const most = 50
	faults := strings.Split(err.Error(), "\n")
	if more := len(faults) - most; more > 0 {
		faults = append(faults[:most], fmt.Sprintf("and %d more", more))
	}
	return faults
}

// Kong does not close the instances of a plugin config that is deleted. They count as live for the conflicts of
// definitions until they have had no event for unusedAfter. An event that comes later compares them again.
const (
	unusedAfter = 10 * time.Minute
	useStep     = time.Minute // how exactly the last use is known
)

// use notes that an instance has an event at now, on the clock of instances.
func (r *instances) use(in *instance, now int64) {
	idle := now - in.usedAt.Load()
	if idle < int64(useStep) {
		return
	}
	if idle > int64(unusedAfter) && in.config != nil {
		if !r.changing.TryLock() {
			return // an instance starts or closes; the next event tries again
		}
		defer r.changing.Unlock()
		r.tellConflicts(in.shared)
	}
	in.usedAt.Store(now)
}

// inUse returns the configs that have had an event, or a start, within unusedAfter.
func (r *instances) inUse() map[*shared]bool {
	now, used := r.elapsed(), map[*shared]bool{}
	r.mu.RLock()
	defer r.mu.RUnlock()
	for _, in := range r.byID {
		if now-in.usedAt.Load() <= int64(unusedAfter) {
			used[in.shared] = true
		}
	}
	return used
}

// tellConflicts logs, once, that a config defines a policy otherwise than a live one of another plugin: both spend
// from one bucket, each by its own limit.
func (r *instances) tellConflicts(made *shared) {
	for other := range r.inUse() {
		if other.config == nil || other.pluginID == made.pluginID || other.config.Namespace != made.config.Namespace {
			continue
		}
		for name, p := range made.definitions {
			same := other.definitions[name]
			if same == nil || (same.Scope == p.Scope && same.Limit.Spec() == p.Limit.Spec() && same.Leasable() == p.Leasable()) {
				continue
			}
			text := fmt.Sprintf("%s: %s, %s in plugin %s, %s, %s in plugin %s",
				p.Name, p.Describe(), p.Accuracy, made.pluginID, same.Describe(), same.Accuracy, other.pluginID)
			if _, ok := r.told[text]; ok || len(r.told) >= 1000 {
				continue
			}
			r.told[text] = struct{}{}
			r.log.Warn("two configs define one policy differently; they share its buckets, each with its own limit (set namespace to keep them apart)",
				"policy", p.Name, "tier", p.Tier, "definitions", text)
		}
	}
}
