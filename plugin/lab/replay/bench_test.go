package replay_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

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

// writeLog writes a log as Kong's file-log plugin does, of 300 requests a second by 1000 tenants. They are distributed
// by Zipf's law: tenant-0 has the most. Entries are in the order in which requests end.
func writeLog(to io.Writer, lines int) error {
	entry, err := os.ReadFile("testdata/entry.json") // what Kong 3.9 writes of a request with a consumer
	out := bufio.NewWriterSize(to, 1<<20)
	random := rand.New(rand.NewPCG(1, 1))
	tenants := rand.NewZipf(random, 1.2, 8, 999)
	for i := range lines {
		took, record, tenant := random.IntN(1500), random.IntN(100_000), tenants.Uint64()
		fields := map[string]string{
			"route": "records", "method": "GET", "path": fmt.Sprintf("/records/%d?fields=name", record), "status": "200",
			"start": fmt.Sprint(noon.Add(time.Duration(i)*time.Second/300).UnixMilli() - int64(took)),
			"took":  fmt.Sprint(took), "proxy": fmt.Sprint(took - 3), "balancer": fmt.Sprint(took - 4),
			"client": fmt.Sprint(tenant % 200), "tenant": fmt.Sprint(tenant),
			"tier": []string{"essentials", "gold", "platinum"}[tenant%3],
			"size": fmt.Sprint(300 + record%900), "answer": fmt.Sprint(200 + record%5000),
			"id": fmt.Sprintf("%016x%016x", random.Uint64(), random.Uint64()),
		}
		switch {
		case record%10 == 0:
			fields["method"], fields["path"] = "POST", "/records"
		case record%4 == 1:
			fields["route"], fields["path"] = "search", fmt.Sprintf("/search?q=term-%d", record)
		}
		if random.IntN(50) == 0 {
			fields["status"] = "404"
		}
		_, _ = out.WriteString(os.Expand(string(entry), func(name string) string { return fields[name] })) // see Flush
	}
	return errors.Join(err, out.Flush())
}

// A log of Kong has 1.9 kB a line.
func TestSoakALogOfTenGigabytesIsReplayedInBoundedMemory(t *testing.T) {
	lines := soak.Count(5_000, 5_400_000)
	text, to := io.Pipe()
	written := make(chan error, 1)
	go func() {
		written <- errors.Join(writeLog(to, lines), to.Close())
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
