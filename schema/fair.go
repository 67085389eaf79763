package schema

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/docpath"
)

// Fair divides a limit among the tenants that spend from its bucket, while they demand more than it allows.
type Fair struct {
	// The weight of each tenant of a tier, from 1 to 1000: with 10 a tenant's share is ten times as large as with 1.
	// Default: none, tenants of all tiers have the weight default.
	Weights map[string]int64 `json:"weights,omitempty" keys:"len_max=64" keys_err:"must have at most 64 bytes" values:"between=1..1000"`

	// The weight of a tenant whose tier is not in weights, and of all requests without a tenant together, from 1 to 1000.
	// Default: 1.
	Default int64 `json:"default,omitempty" kong:"required,between=1..1000" default:"1"`
}

const (
	// MaxFairWindow is the longest window of a limit that is shared fairly, in seconds.
	MaxFairWindow = 3599
	// LeastFairRate is the lowest rate of such a limit, in tokens per second.
	LeastFairRate = 10
	// maxFairWeights is the largest number of weights.
	maxFairWeights = 64
)

// Weight returns the weight of the tenants of a tier.
func (f *Fair) Weight(tier string) int64 {
	if weight, ok := f.Weights[tier]; ok {
		return weight
	}
	return max(f.Default, 1)
}

// Equal reports whether two records are the same; nil is one of a limit that is not shared fairly.
func (f *Fair) Equal(other *Fair) bool {
	if f == nil || other == nil {
		return f == other
	}
	return max(f.Default, 1) == max(other.Default, 1) && maps.Equal(f.Weights, other.Weights)
}

// Describe returns f in words.
func (f *Fair) Describe() string {
	if len(f.Weights) == 0 {
		return "shared fairly, all tenants alike"
	}
	var weights []string
	for _, tier := range slices.Sorted(maps.Keys(f.Weights)) {
		weights = append(weights, fmt.Sprintf("%s %d", tier, f.Weights[tier]))
	}
	return fmt.Sprintf("shared fairly by the weights %s, others %d", strings.Join(weights, ", "), max(f.Default, 1))
}

// fairFaults returns the faults of a limit that is shared fairly and cannot be. In Kong's schema language they would be
// conditions on a record that most limits lack.
func (l LocatedLimit) fairFaults() []Fault {
	if l.Fair == nil {
		return nil
	}
	var faults findings
	fault := func(field, format string, args ...any) { faults.add(docpath.Member(l.Path, field), format, args...) }
	if l.Scope != ScopeGlobal && l.Scope != ScopeEndpoint {
		fault("scope", "must be global or endpoint beside fair, because only from these several tenants spend, got %q",
			docpath.Shorten(l.Scope))
	}
	if !l.isTokenBucket() {
		fault("algorithm", "must be token_bucket beside fair, because shares are tokens per second and only a token_bucket "+
			"refills by the second, got %q", docpath.Shorten(l.Algorithm))
	}
	if l.SoftOnly {
		fault("soft_only", "must not be true beside fair, because a limit that never denies has nothing to share: to try "+
			"a limit, set mode to shadow, got true")
	}
	if len(l.Fair.Weights) > maxFairWeights {
		fault("fair.weights", "must have at most %d tiers, has %d", maxFairWeights, len(l.Fair.Weights))
	}
	if !l.inRange() || l.WindowSize == 0 {
		return faults
	}
	switch rate := l.Limit.Limit / l.WindowSize; {
	case l.WindowSize > MaxFairWindow:
		fault("window_size", "must be at most %d beside fair, because shares are divided every second and a quota is used "+
			"over hours: give tenants limits of their own, got %d", MaxFairWindow, l.WindowSize)
	case rate < LeastFairRate:
		fault("limit", "must be at least %d for each second of window_size beside fair (%d), because a smaller rate has too "+
			"few tokens a second to share, got %d", LeastFairRate, LeastFairRate*l.WindowSize, l.Limit.Limit)
	case l.isTokenBucket() && l.Capacity() < rate:
		fault("burst", "must be at least what refills in a second beside fair (%d), got %d", rate, l.Burst)
	}
	return faults
}

func (c Config) fairWarnings(l LocatedLimit) []Warning {
	if l.Fair == nil {
		return nil
	}
	var warnings findings
	names := tierNames(c.Tiers)
	for _, tier := range slices.Sorted(maps.Keys(l.Fair.Weights)) {
		if !slices.Contains(names, tier) {
			warnings.add(docpath.Member(docpath.Join(l.Path, "fair.weights"), tier),
				"is the weight of a tier that this config does not have: it counts only for tenants whose tier a database sets")
		}
	}
	return warnings
}
