package replay_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/leaktest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/lab/replay"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/node/routeconfig"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// twoAMinute allows tenants two requests in each minute, and lets anonymous requests pass.
const twoAMinute = `
plugins:
- name: tenant-rate-limiting
  config:
    on_missing_tenant: skip
    tiers:
    - name: basic
      limits:
      - {name: minute, scope: tenant, limit: 2, window_size: 60, algorithm: fixed_window}
`

// noon is the time of the first request of most logs.
var noon = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

// entry is an entry of Kong's log, seconds after noon, of a tenant; "" is none.
func entry(seconds float64, tenant string) string {
	consumer := ""
	if tenant != "" {
		consumer = fmt.Sprintf(`,"consumer":{"custom_id":%q,"tags":{}}`, tenant)
	}
	at := noon.Add(time.Duration(seconds * float64(time.Second))).UnixMilli()
	return fmt.Sprintf(`{"started_at":%d,"client_ip":"192.0.2.1","request":{"method":"GET","uri":"/records/7?x=y"},`+
		`"response":{"status":200},"route":{"name":"records"}%s}`, at, consumer)
}

// file returns the configs of a decK file.
func file(t testing.TB, text string) *routeconfig.File {
	t.Helper()
	f, err := routeconfig.Read([]byte(text), "kong.yml")
	require.NoError(t, err)
	return f
}

// logOf returns a log of lines.
func logOf(t testing.TB, o replay.LogOptions, lines ...string) *replay.Log {
	t.Helper()
	l, err := replay.NewLog("access.log", strings.NewReader(strings.Join(lines, "\n")+"\n"), o)
	require.NoError(t, err)
	return l
}

// replayed replays logs under a config, and returns the report and the outcome of each request in their order.
func replayed(
	t testing.TB, config string, o replay.GatewayOptions, logs ...*replay.Log,
) (*replay.Report, string) {
	t.Helper()
	gateway, err := replay.NewGateway(file(t, config), o)
	require.NoError(t, err)
	var outcomes strings.Builder
	stream := replay.NewStream(logs, replay.StreamOptions{})
	report, err := replay.Run(context.Background(), stream, gateway, func(_ *replay.Request, d *decision.Decision) {
		outcomes.WriteByte(map[bool]byte{true: 'D', false: '.'}[d.Denied()])
	})
	require.NoError(t, err)
	return report, outcomes.String()
}

// zipped returns a text as gzip writes it.
func zipped(t testing.TB, text string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	require.NoError(t, w.Close())
	return b.Bytes()
}
