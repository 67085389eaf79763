package control

import (
	"slices"
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
)

// overrideEffect is what an override does to any of the requests. The zero value is that of a ban or an exemption.
type overrideEffect struct {
	changes []string // the names of the changed policies that the caller may read
	hidden  bool     // it changes one that the caller may not read
}

// addEffects records which overrides changed a bound.
func (w *inForceReport) addEffects(b *policy.Bound) {
	for _, id := range [...]int64{b.Override, b.Penalty} {
		if id == 0 {
			continue
		}
		a := w.effects[id]
		if a == nil {
			a = new(overrideEffect)
			w.effects[id] = a
		}
		switch name := b.Policy.Name; {
		case !w.view.readsBound(b):
			a.hidden = true
		case !slices.Contains(a.changes, name):
			a.changes = append(a.changes, name)
		}
	}
}

// why returns the effect in words.
func (a *overrideEffect) why() string {
	switch {
	case len(a.changes) > 0:
		return "it changes " + strings.Join(a.changes, ", ")
	case a.hidden:
		return "it changes a limit whose numbers are not shown"
	}
	return "the strongest of its kind"
}
