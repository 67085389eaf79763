package reservation

import (
	"bytes"
	"encoding/gob"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
)

func TestAReservationIsSettledByTheProcessThatLoadsIt(t *testing.T) {
	w := newWorld(t, 0)
	var tokens []string
	for _, after := range []limit.Micros{0, 50 * limit.Second, 30 * limit.Second} { // the first has timed out
		w.now += after
		w.table.Expire()
		tokens = append(tokens, w.reserve(boundOf(budget(t, 100), 100)))
	}
	var file bytes.Buffer
	require.NoError(t, w.table.Save(gob.NewEncoder(&file)))
	assert.Zero(t, w.table.Stats().Kept)
	next := New(w.table.options)
	_, err := next.Load(gob.NewDecoder(bytes.NewReader(file.Bytes()[:file.Len()-1])), w.store)
	assert.Error(t, err)
	assert.Zero(t, next.Stats().Kept)
	add, err := next.Load(gob.NewDecoder(&file), w.store)
	require.NoError(t, err)
	add()
	w.settled, w.table = nil, next
	next.Expire()
	assert.Empty(t, w.settled, "the timeout of the first one was reported already")
	for range 2 { // once only
		w.settle(tokens[0], usedTokens(130))
		w.settle(tokens[1], usedTokens(20))
	}
	w.now += 61 * limit.Second
	next.Expire()
	w.settle(tokens[2], usedTokens(20))
	w.expect(boundOf(budget(t, 100), 100), 130+20+100, Late, Measured, TimedOut, Late)
}
