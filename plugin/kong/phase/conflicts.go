package phase

import (
	"fmt"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

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
		p.Fair.Equal(q.Fair)
}

// settlesAlike reports whether two policies charge alike what a request has really used.
func settlesAlike(p, q *policy.Policy) bool {
	if p.Settle == nil || q.Settle == nil {
		return p.Settle == q.Settle
	}
	return p.Settle.Describe() == q.Settle.Describe()
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
