package reservation

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
)

// unread are records of a pool that does not answer.
type unread struct{ Records }

var errDead = errors.New("the pool is dead")

func (unread) Get(context.Context, string) ([]byte, error) { return nil, errDead }

func TestAReservationIsSettledInThePoolThatItWasMadeIn(t *testing.T) {
	first, second := newWorld(t, 0), newWorld(t, 0)
	pools := Keepers{first.keeper, first.table.Keeper(second.store, nil, func() {})}
	b := boundOf(budget(t, 100), 100)
	var d decision.Decision
	d.Reset()
	d.Resolution.Pool, d.Resolution.Bounds = 1, append(d.Resolution.Bounds, b)
	d.Grow()
	require.NoError(t, second.store.Take(t.Context(), d.Resolution.Bounds, d.Statuses))
	first.settle(pools.Keep(&d), usedTokens(40))
	assert.EqualValues(t, 40, second.used(b), "tokens are used in its pool")
	assert.Zero(t, first.used(b), "tokens are used in another pool")
}

func TestANamedReservationIsSettledInThePoolThatHasItWhateverBecameOfOthers(t *testing.T) {
	w := newNamedWorld(t)
	other := w.beside(Options{})
	other.records = unread{w.records}
	name := Name{Namespace: "default", ID: "chat-1"}
	claim, _, err := w.Claim(t.Context(), &Request{Name: name, Hash: []byte("h"), Org: "acme", Timeout: time.Minute})
	require.NoError(t, err)
	require.NoError(t, claim.Keep(t.Context(), nil, []byte(`{}`)))
	admits := func(string, string) error { return nil }

	settled, err := Keepers{other, w.Keeper}.Settle(t.Context(), name, Use{Actual: 3}, admits)
	require.NoError(t, err)
	assert.EqualValues(t, 3, settled.Actual)
	name.ID = "chat-2"
	_, err = Keepers{other, w.Keeper}.Settle(t.Context(), name, Use{}, admits)
	assert.ErrorIs(t, err, errDead, "it may be in the pool that is dead")
	_, err = Keepers{w.Keeper, w.Keeper}.Settle(t.Context(), name, Use{}, admits)
	assert.ErrorIs(t, err, ErrUnknown)
}
