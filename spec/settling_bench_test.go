//go:build linux

package spec

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/kong/gateway"
)

const (
	companion      = "tenant-rate-settling"
	settledReserve = 300 // tokens of a request
	settledActual  = 200 // as a source says, which is also the status of its response
)

// newSettling starts the plugin with four limits, of which the first settles to source; "": none does. A request has
// the access phase at the socket of the plugin and, with hasLog, the log phase at that of the companion.
func newSettling(b *testing.B, name, store, source string, hasLog bool, connections int) *subject {
	b.Helper()
	const tenant = `{"name":"tenant","scope":"tenant",`
	config := fourScopes(1, store+fmt.Sprintf(`"namespace":%q,"accuracy":"exact",`, name))
	budget := tenant + `"algorithm":"fixed_window","limit":50000000,"window_size":31536000` // the fullest of all
	if source != "" {
		budget += fmt.Sprintf(`,"settle":{"sources":[{"from":%q}],"reserve":%d}`, source, settledReserve)
	}
	config = strings.Replace(config, tenant+`"limit":60000000,"window_size":60`, budget, 1)
	server := servePlugin(b)
	u := &subject{name: name, server: server, id: startInstance(b, server.socket, config)}
	u.requests = []gateway.Request{requestOf("acme")}
	u.requests[0].Route.Service = &gateway.Service{ID: "s", Name: "records"}
	u.requests[0].Header = http.Header{"User-Agent": {"a-client/1.0"}, "Accept": {"application/json"}}
	u.connect(b, connections)
	var logs []*gateway.Conn
	var instance int32
	for hasLog && len(logs) < connections {
		c, err := gateway.Dial(filepath.Join(filepath.Dir(u.socket), companion+".socket"))
		require.NoError(b, err)
		b.Cleanup(func() { c.Close() })
		if logs = append(logs, c); len(logs) == 1 {
			instance, err = c.StartInstance(companion, []byte(`{"__seq__":1,"__plugin_id":"q"}`))
			require.NoError(b, err)
		}
	}
	u.run = func(u *subject, worker, _ int) error {
		request := u.requests[0]
		outcome, err := u.conns[worker].HandleEvent(u.id, "access", request)
		if err != nil || outcome.Exit != nil || (source != "") != (outcome.Shared["trl"] != nil) {
			return fmt.Errorf("%s: %+v, %w", name, outcome, err)
		}
		if logs == nil {
			return nil
		}
		request.Shared = map[string]any{"trl": outcome.Shared["trl"], "tokens": float64(settledActual)}
		request.Response = &gateway.Response{
			Status: settledActual, Source: "service", Header: http.Header{"Content-Type": {"application/json"}},
		}
		_, err = logs[worker].HandleEvent(instance, "log", request)
		return err
	}
	return u
}

// BenchmarkSettling compares a request that reserves, and settles in its log phase, with one that has an exact limit
// without settling. All take turns; each number is the median of its turns. That a request costs what its source says
// is checked by the specs.
func BenchmarkSettling(b *testing.B) {
	const connections = 16
	shared := redistest.Single(b)
	inRedis := fmt.Sprintf(`"strategy":"redis","fail_mode":"closed",
		"redis":{"socket":%q,"send_timeout":1000,"read_timeout":1000},`, shared.Socket)
	for _, at := range []struct {
		name, config string
		client       *redis.Client
	}{{"memory", "", nil}, {"redis", inRedis, shared.Client(b)}} {
		subjects := []*subject{
			newSettling(b, "plain", at.config, "", false, connections),
			newSettling(b, "plain-and-log-phase", at.config, "", true, connections),
			newSettling(b, "settles-to-shared", at.config, "shared.tokens", true, connections),
			newSettling(b, "settles-to-log", at.config, "log.response.status", true, connections),
		}
		measured := measure(b, at.client, connections, subjects...)
		for i, u := range subjects {
			cells := map[string]float64{
				"requests/s":     over(measured[i], perSecond),
				"cpu-µs/request": over(measured[i], cpu),
				"cpu-vs-plain":   ratio(measured[i], measured[0], cpu),
			}
			if at.client != nil {
				ofRedis := func(s spell) float64 { return s.redis }
				cells["redis-µs/request"], cells["redis-vs-plain"] = over(measured[i], ofRedis), ratio(measured[i], measured[0], ofRedis)
				cells["redis-commands/request"] = over(measured[i], func(s spell) float64 { return s.commands })
			}
			row(b, fmt.Sprintf("store=%s/request=%s", at.name, u.name), cells)
		}
	}
}
