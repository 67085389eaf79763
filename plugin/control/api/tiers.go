package api

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/leadership"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/node/routeconfig"
)

// tierAssumed is the source of the default tier of an org that no node has seen.
const tierAssumed = "assumed"

// refreshTiers is the time between two reads of what nodes have reported.
const refreshTiers = 2 * time.Second

// sameTime is how long ago a tier may have been seen that is seen beside the last one. Nodes report a tier that stays
// every five minutes. One that was not seen since another began at the same source was replaced by it: the org has
// changed its plan.
const sameTime = 10 * time.Minute

// Tiers knows which tiers orgs without a row are on: those that nodes have reported, and those of the consumers in a
// config file. The nil Tiers knows none. It is safe for concurrent use.
type Tiers struct {
	store     *rows.DB
	namespace string

	inFile  map[string][]answers.SeenTier // by org
	changed time.Time                     // the file with these consumers

	reading sync.Mutex // held while the store is read, which no decision waits for
	last    time.Time  // when the last tier that was read had been stored

	mu   sync.RWMutex
	seen map[string][]answers.SeenTier // by org; a list does not change
}

// NewTiers returns what is known from the namespace and the consumers of a config, whose file was changed at an
// instant. Refresh adds what nodes have reported to the store; without one, ReadFrom gives it.
func NewTiers(
	store *rows.DB, namespace string, consumers []routeconfig.ConsumerTier, changed time.Time,
) *Tiers {
	t := &Tiers{
		store: store, namespace: namespace, changed: changed, inFile: map[string][]answers.SeenTier{},
		seen: map[string][]answers.SeenTier{},
	}
	for _, c := range consumers {
		known := answers.SeenTier{Tier: c.Tier, Source: c.Source}
		if !slices.Contains(t.inFile[c.Tenant], known) {
			t.inFile[c.Tenant] = append(t.inFile[c.Tenant], known)
		}
	}
	return t
}

// Run refreshes what is known until ctx ends.
func (t *Tiers) Run(ctx context.Context, log *slog.Logger) error {
	fault := leadership.Fault{
		Log: log, Level: slog.LevelWarn, Begins: "the tiers that nodes report cannot be read: those that are known stay",
		Ends: "the tiers that nodes report can be read again",
	}
	for {
		err := t.Refresh(ctx, "")
		if ctx.Err() != nil {
			return nil
		}
		fault.Record(err)
		leadership.Pause(ctx, refreshTiers)
	}
}

// Refresh reads what nodes have reported since the last call; with an org, of this alone. The nil Tiers has nothing to
// read.
func (t *Tiers) Refresh(ctx context.Context, org string) error {
	if t == nil {
		return nil
	}
	t.reading.Lock()
	defer t.reading.Unlock()
	for s, err := range t.store.SeenTiers(ctx, org, t.last) {
		if err != nil {
			return err
		}
		t.last = s.StoredAt
		if s.Namespace == t.namespace && s.Source != resolve.TierOfRow { // the row itself is known
			t.add(s.Tenant, answers.SeenTier{Tier: s.Tier, Source: s.Source, SeenAt: s.SeenAt.UTC(), Since: s.Since})
		}
	}
	return nil
}

// add adds a tier of an org, or replaces what was known of it.
func (t *Tiers) add(org string, s answers.SeenTier) {
	t.mu.Lock()
	defer t.mu.Unlock()
	list := slices.DeleteFunc(slices.Clone(t.seen[org]), func(o answers.SeenTier) bool {
		return o.Tier == s.Tier && o.Source == s.Source
	})
	list = append(list, s)
	slices.SortFunc(list, func(a, b answers.SeenTier) int { return b.SeenAt.Compare(a.SeenAt) })
	t.seen[org] = list
}

// ReadFrom reads what nodes have reported of an org to a store; the org "" means all.
func (t *Tiers) ReadFrom(ctx context.Context, store *rows.DB, org string) error {
	if t == nil {
		return nil
	}
	t.store = store
	return t.Refresh(ctx, org)
}

// isReplaced reports whether a tier was found where a later one was found since, and not seen again.
func isReplaced(s answers.SeenTier, later []answers.SeenTier) bool {
	return slices.ContainsFunc(later, func(l answers.SeenTier) bool {
		return s.Source == l.Source && s.SeenAt.Before(l.Since)
	})
}

// Of returns the tiers of an org, the one that was seen last first. Those that a client may have written into a header
// come behind the others.
func (t *Tiers) Of(org string) []answers.SeenTier {
	if t == nil {
		return nil
	}
	seen := t.all(org)
	var current, inHeaders []answers.SeenTier
	for i := range seen {
		switch {
		case seen[0].SeenAt.Sub(seen[i].SeenAt) > sameTime || isReplaced(seen[i], seen[:i]):
		case identity.IsHeader(seen[i].Source):
			inHeaders = append(inHeaders, seen[i])
		default:
			current = append(current, seen[i])
		}
	}
	return append(current, inHeaders...)
}

// all returns what is known of an org, the one that was seen last first. Of a file and nodes the newer counts.
func (t *Tiers) all(org string) []answers.SeenTier {
	t.mu.RLock()
	defer t.mu.RUnlock()
	seen := t.seen[org]
	if inFile := t.inFile[org]; len(inFile) > 0 && (len(seen) == 0 || t.changed.After(seen[0].SeenAt)) {
		return inFile
	}
	return seen
}

// Identities returns an identity with the tiers that are known of its tenant: several if its consumers have different
// ones, the one to show first. An identity that claims a tier, or whose tenant is unknown, stays as it is.
func (t *Tiers) Identities(id identity.Identity) []identity.Identity {
	known := t.Of(id.Tenant.ID)
	if id.Tier != "" || id.Tenant.Kind != identity.Tenant || len(known) == 0 {
		return []identity.Identity{id}
	}
	list := make([]identity.Identity, len(known))
	for i, k := range known {
		list[i] = id
		list[i].Tier, list[i].TierSource = k.Tier, k.Source
	}
	return list
}

// Trusted returns the tier by which an org's requests may be decided, or "": the last one that no client can have
// chosen by a header.
func (t *Tiers) Trusted(org string) string {
	if known := t.trusted(org); known.Source != resolve.TierOfDefault {
		return known.Tier
	}
	return ""
}

// trusted returns the last tier of an org that no client can have chosen, or the zero value if there is none.
func (t *Tiers) trusted(org string) (last answers.SeenTier) {
	if t == nil {
		return last
	}
	for _, known := range t.all(org) {
		if !identity.IsHeader(known.Source) {
			return known
		}
	}
	return last
}

// sourceOf returns where the tier of a decision comes from, and when nodes saw it there; claimed: the caller named one.
func (t *Tiers) sourceOf(d *decision.Decision, claimed bool) (source string, seenAt time.Time) {
	r := &d.Resolution
	if r.Tier == "" || d.Identity.Tenant.Kind != identity.Tenant {
		return "", seenAt
	}
	known := t.trusted(d.Identity.Tenant.ID)
	switch {
	case r.TierSource == "" && claimed:
		return "query", seenAt
	case r.TierSource == "":
		return known.Source, known.SeenAt
	case r.TierSource == resolve.TierOfDefault && known.Source == "" && len(t.Of(d.Identity.Tenant.ID)) == 0:
		return tierAssumed, seenAt
	}
	return r.TierSource, seenAt
}

// Describe returns the tier that an org's identity, one of Identities, has at an instant.
func (t *Tiers) Describe(policies *resolve.Plan, id *identity.Identity, now limit.Micros) answers.OrgTier {
	e := policies.Explain(id, now)
	found := answers.OrgTier{Tier: e.Tier, Pool: e.Pool, Source: e.TierFrom}
	found.Title, found.Price = policies.TierWords(e.Tier)
	switch found.Source {
	case "request":
		found.Source = "query"
		return found
	case resolve.TierOfRow:
		return found
	}
	known := t.Of(id.Tenant.ID)
	if found.Source == resolve.TierOfDefault && len(known) == 0 {
		found.Source = tierAssumed
	}
	for _, k := range known {
		if k.Tier == found.Tier && k.Source == found.Source {
			found.SeenAt = k.SeenAt
		} else {
			k.Pool = policies.PoolOf(k.Tier)
			found.Others = append(found.Others, k)
		}
	}
	return found
}
