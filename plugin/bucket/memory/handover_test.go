package memory_test

import (
	"bytes"
	"encoding/gob"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/storetest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/memory"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

func TestBucketsGoOnInAnotherStoreThatLoadsThem(t *testing.T) {
	clock := storetest.NewClock()
	first, second := memory.New(memory.Options{Now: clock.Now}), memory.New(memory.Options{Now: clock.Now})
	log := policyOf(t, "log", limit.Spec{Algorithm: limit.SlidingLog, Quantity: 60, Window: minute})
	bounds := []policy.Bound{ofUser(daily(t), "acme", "\xff\x00"), boundOf(log, policy.ByTenant, "acme")}
	for i := range 1000 {
		clock.Advance(limit.Second / 100)
		if i < 40 {
			take(t, first, bounds...)
		}
		take(t, first, boundOf(perIP(t), policy.ByIP, ip(i)))
	}
	var file bytes.Buffer
	require.NoError(t, first.Save(gob.NewEncoder(&file)))
	size := file.Len()
	for cut := 0; cut < size; cut += size / 20 {
		_, err := second.Load(gob.NewDecoder(bytes.NewReader(file.Bytes()[:cut])))
		assert.Error(t, err, "%d of %d bytes", cut, size)
	}
	assert.Zero(t, second.Stats().Buckets)
	add, err := second.Load(gob.NewDecoder(&file))
	require.NoError(t, err)
	add()
	first.Sweep(clock.Now())
	assert.Equal(t, first.Stats().Buckets, second.Stats().Buckets)
	for range 30 { // the log is used up meanwhile
		assert.Equal(t, take(t, first, bounds...), take(t, second, bounds...))
		clock.Advance(limit.Second / 10)
	}
}
