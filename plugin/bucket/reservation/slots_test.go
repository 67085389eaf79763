package reservation

import (
	"bytes"
	"encoding/gob"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/storetest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/settle"
)

// exports is a limit of two requests at once, each for a minute at most.
func exports(t *testing.T) policy.Bound {
	l, err := limit.New(limit.Spec{Algorithm: limit.Concurrency, Quantity: 2, Window: 60 * limit.Second})
	require.NoError(t, err)
	p := &policy.Policy{Name: "exports", Scope: policy.Tenant, Limit: l}
	return storetest.WithPolicy(boundOf(p, 1), p)
}

// waysToEnd are the ends that a request can have.
var waysToEnd = map[string]end{
	"answered": usedTokens(7), "failed": {answer: settle.Answer{Status: 503}},
	"aborted": {answer: settle.Answer{Status: 499}}, "unreadable": {err: errors.New("no answer")},
}

func TestASlotIsFreeWhenItsRequestHasEndedHoweverItDid(t *testing.T) {
	for name, e := range waysToEnd {
		w, b := newWorld(t, 0), exports(t)
		first, second := w.reserve(b), w.reserve(b)
		assert.Empty(t, w.reserve(b), "a third request is denied")
		assert.Equal(t, 2, w.table.Stats().Slots, "slots of this process")
		for range 2 {
			_ = w.table.Settle(t.Context(), first, e)
		}
		w.expect(b, 1, Released)
		assert.Equal(t, 1, w.table.Stats().Slots, name)
		assert.NotEmpty(t, w.reserve(b), "%s: the slot is free", name)
		w.settle(second, usedTokens(0))
		w.expect(b, 1, Released, Released)
	}
}

func TestASlotWithoutAnEndIsFreeAtItsDeadline(t *testing.T) {
	w, b := newWorld(t, 0), exports(t)
	lost, late := w.reserve(b), w.reserve(b)
	w.now += 60 * limit.Second
	w.table.Expire()
	assert.Zero(t, w.table.Stats().Slots)
	w.expect(b, 0, Ended, Ended)
	next := w.reserve(b)
	w.settle(late, usedTokens(3))
	w.expect(b, 1, Ended, Ended, Late) // it frees no other slot
	w.settle(next, usedTokens(3))
	w.expect(b, 0, Ended, Ended, Late, Released)
	w.now += 120 * limit.Second
	w.table.Expire()
	w.settle(lost, usedTokens(3))
	assert.Equal(t, Stats{Unknown: 1}, w.table.Stats())
}

func TestASlotOfARequestWithTokensIsReleasedWithoutAMeasurement(t *testing.T) {
	w, slot, tokens := newWorld(t, 0), exports(t), boundOf(budget(t, 100), 100)
	var d decision.Decision
	d.Reset()
	d.Resolution.Bounds = []policy.Bound{slot, tokens}
	d.Grow()
	require.NoError(t, w.store.Take(t.Context(), d.Resolution.Bounds, d.Statuses))
	token := w.keeper.Keep(&d)
	assert.Error(t, w.table.Settle(t.Context(), token, waysToEnd["unreadable"]))
	w.expect(slot, 0, Released, Unmeasured)
	assert.EqualValues(t, 100, w.used(tokens), "tokens stay charged")
}

func TestASlotIsReleasedByAnyProcessOnceHoweverItsRequestEnded(t *testing.T) {
	for name, e := range waysToEnd {
		w := newWorld(t, 0)
		w.shares(newRecords())
		b := exports(t)
		text := w.reserve(b)
		w.recorded()
		assert.True(t, strings.HasSuffix(text, "."), "the token %s wants nothing to be read", text)
		other := w.beside()
		for range 2 {
			assert.Equal(t, e.err != nil, other.table.Settle(t.Context(), text, e) != nil, name)
		}
		other.expect(b, 0, Released)
		again := w.reserve(b)
		w.settle(text, usedTokens(3))
		w.expect(b, 1)
		w.settle(again, usedTokens(3))
		w.expect(b, 0, Released)
	}
}

func TestASlotIsReleasedWhereItIsUnknownWhoMay(t *testing.T) {
	w := newWorld(t, 0)
	records := newRecords()
	records.addErr = outcome{mayHaveRun: true}
	w.shares(records)
	b := exports(t)
	text := w.reserve(b)
	w.recorded()
	clear(records.records)
	w.settle(text, usedTokens(3))
	w.expect(b, 0, Released)
}

func TestASlotIsHandedOverToTheNextProcess(t *testing.T) {
	w, b := newWorld(t, 0), exports(t)
	text := w.reserve(b)
	var file bytes.Buffer
	require.NoError(t, w.table.Save(gob.NewEncoder(&file)))
	next := New(w.table.options)
	add, err := next.Load(gob.NewDecoder(&file), w.store)
	require.NoError(t, err)
	add()
	assert.Equal(t, 1, next.Stats().Slots)
	w.table = next
	w.settle(text, usedTokens(3))
	w.expect(b, 0, Released)
	assert.Zero(t, next.Stats().Slots)
}

func TestAFullLedgerLeavesASlotToItsDeadline(t *testing.T) {
	w, b := newWorld(t, 1), exports(t)
	dropped, kept := w.reserve(b), w.reserve(b)
	w.settle(dropped, usedTokens(3))
	w.expect(b, 2, Ended)
	assert.Equal(t, 1, w.table.Stats().Slots)
	w.settle(kept, usedTokens(3))
	w.expect(b, 1, Ended, Released)
}

func TestASlotOfANamedReservationIsReleasedByItsSettlement(t *testing.T) {
	w := newNamedWorld(t)
	w.budget = exports(t)
	require.NoError(t, w.reserve("export", 1))
	assert.Equal(t, 1, w.ledger.Stats().Slots)
	for range 2 {
		s, err := w.beside(Options{}).Settle(t.Context(), Name{"default", "", "export"}, Use{Actual: 500},
			func(string, string) error { return nil })
		require.NoError(t, err)
		require.Len(t, s.Changes, 1)
		assert.True(t, s.Changes[0].Change == -1 && !s.Changes[0].Lost, "%+v", s)
		w.wantUsed(0)
	}
}
