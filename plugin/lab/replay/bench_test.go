package replay_test

import (
	"context"
	"errors"
	"io"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/konglog"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/soak"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/lab/replay"
)

// fourLimits has the limits of usual plans.
const fourLimits = `
plugins:
- name: tenant-rate-limiting
  config:
    default_tier: essentials
    tiers:
    - name: essentials
      limits:
      - {name: daily, scope: tenant, limit: 15000, window_size: 86400, algorithm: fixed_window}
      - {name: burst, scope: tenant, limit: 10, window_size: 1}
      - {name: search, scope: tenant+endpoint, endpoint: "GET /search", limit: 100, window_size: 60,
         algorithm: sliding_window}
    - name: gold
      limits:
      - {name: daily, scope: tenant, limit: 1000000, window_size: 86400, algorithm: fixed_window}
      - {name: per-key, scope: credential, limit: 500, window_size: 60}
    global:
      limits:
      - {name: writes, scope: endpoint, endpoint: "POST /records", limit: 5000, window_size: 60}
`

// A log of Kong has 1.9 kB a line.
func TestSoakALogOfTenGigabytesIsReplayedInBoundedMemory(t *testing.T) {
	lines := soak.Count(5_000, 5_400_000)
	text, to := io.Pipe()
	written := make(chan error, 1)
	go func() {
		err := konglog.Write(to, konglog.Options{Lines: lines, Tenants: 1000, From: noon, PerSecond: 300, Seed: 1})
		written <- errors.Join(err, to.Close())
	}()
	log, err := replay.NewLog("access.jsonl", text, replay.LogOptions{})
	require.NoError(t, err)
	var memory runtime.MemStats
	most := uint64(0)
	stream := replay.NewStream([]*replay.Log{log}, replay.StreamOptions{Waiting: 2000, Progress: func() {
		runtime.ReadMemStats(&memory)
		most = max(most, memory.HeapAlloc)
	}})
	gateway, err := replay.NewGateway(file(t, fourLimits), replay.GatewayOptions{})
	require.NoError(t, err)
	began := time.Now()
	report, err := replay.Run(context.Background(), stream, gateway, nil)
	err = errors.Join(err, <-written)
	if err != nil || report.Requests != int64(lines) || report.Counts.Unparsed+report.Counts.Late != 0 {
		t.Fatalf("%v, %d requests, %+v", err, report.Requests, report.Counts)
	}
	t.Logf("%d lines, %d MB, in %v, %d MiB at most", lines, log.Read()/1e6, time.Since(began).Round(time.Millisecond), most>>20)
	if most > 64<<20 {
		t.Errorf("%d MiB in use by a log of %d MB", most>>20, log.Read()/1e6)
	}
}
