package engine

import (
	"bytes"
	"encoding/gob"
	"io"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/reservation"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/node/process"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/observe/metrics"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// reserving returns an engine with a config whose limit of 10 tokens reserves 4 for each request.
func reserving(t *testing.T) (*Engine, *admit.Decider) {
	t.Helper()
	config := schema.Config{Strategy: schema.StrategyLocal, Tiers: []schema.Tier{{Name: "a", Limits: []schema.Limit{{
		Name: "budget", Scope: schema.ScopeTenant, Algorithm: schema.AlgorithmFixedWindow, Limit: 10, WindowSize: 31536000,
		Settle: &schema.Settle{Sources: []schema.SettleSource{{From: "header.X"}}, Reserve: 4},
	}}}}}.WithDefaults()
	e := New(t.Context(), Options{Log: slog.New(slog.DiscardHandler)})
	e.Metrics = metrics.New("1", e.Sources())
	e.Reservations = reservation.New(reservation.Options{Elapsed: process.Elapsed, Now: process.WallClock})
	plan, err := resolve.FromConfig(config)
	require.NoError(t, err)
	decider, release, err := e.Build(config, plan)
	require.NoError(t, err)
	t.Cleanup(release)
	return e, decider
}

func TestAnEngineGoesOnWithWhatAnotherHasSavedOrWithNothing(t *testing.T) {
	e, decider := reserving(t)
	require.Equal(t, 2, admitted(t, decider, "acme", 9))
	var file, foreign bytes.Buffer
	require.NoError(t, e.Save(&file))
	other := gob.NewEncoder(&foreign)
	require.NoError(t, other.Encode(stateHeader{Format: stateFormat + 1}))
	require.NoError(t, e.Stores.Save(other))
	require.NoError(t, e.Reservations.Save(other))
	next, decider := reserving(t)
	broken := []io.Reader{&foreign, bytes.NewReader(make([]byte, 1000))}
	for cut := range file.Len() {
		broken = append(broken, bytes.NewReader(file.Bytes()[:cut]))
	}
	for i, file := range broken {
		assert.Error(t, next.Load(file), "file %d", i)
		assert.Zero(t, next.Stores.Local().Buckets+next.Reservations.Stats().Kept)
	}
	require.NoError(t, next.Load(&file))
	assert.Equal(t, 2, next.Reservations.Stats().Kept)
	assert.Zero(t, admitted(t, decider, "acme", 9))
	assert.Equal(t, 2, admitted(t, decider, "other", 9))
}

func TestAnEngineGoesOnByTheClockOfTheBucketsThatItLoads(t *testing.T) {
	e, _ := reserving(t)
	ahead := process.BucketClock.Now() + 60*limit.Second
	defer process.BucketClock.Set(process.WallClock())
	var file bytes.Buffer
	out := gob.NewEncoder(&file)
	require.NoError(t, out.Encode(stateHeader{stateFormat, ahead}))
	require.NoError(t, e.Stores.Save(out))
	require.NoError(t, e.Reservations.Save(out))
	require.NoError(t, e.Load(&file))
	assert.GreaterOrEqual(t, process.BucketClock.Now(), ahead)
}
