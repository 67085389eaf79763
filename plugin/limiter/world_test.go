package limiter_test

import (
	"cmp"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limiter"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// daily allows tenants ten tokens a day, and their users four of these.
const daily = `
tiers:
  - name: essentials
    limits:
      - {name: daily, scope: tenant, limit: 10, window_size: 86400}
      - {name: user, scope: user, limit: 4, window_size: 86400}
on_missing_user: skip
`

// roomy has limits that no test reaches.
const roomy = `
tiers:
  - name: a
    limits:
      - {name: daily, scope: tenant, limit: 1000000000, window_size: 86400}
      - {name: user, scope: user, limit: 1000000000, window_size: 86400}
      - {name: writes, scope: tenant, endpoint: "POST /records/{id}", limit: 1000000000, window_size: 86400}
`

// parse reads a config in YAML.
func parse(t testing.TB, text string) schema.Config {
	t.Helper()
	config, err := limiter.Parse([]byte(text))
	require.NoError(t, err)
	return config
}

// limiting makes a limiter that is closed at the end of the test.
func limiting(t testing.TB, config schema.Config) *limiter.Limiter {
	t.Helper()
	return limitingBy(t, limiter.Options{Config: config})
}

// limitingBy is limiting by options. A Redis that stalls with a busy machine gets time: else this node's share decides.
func limitingBy(t testing.TB, o limiter.Options) *limiter.Limiter {
	t.Helper()
	o.Budget = cmp.Or(o.Budget, time.Minute)
	l, err := limiter.New(o)
	require.NoError(t, err)
	t.Cleanup(func() {
		assert.NoError(t, l.Close(context.Background()))
	})
	return l
}

// inRedis returns a config whose buckets are in a Redis, exact. Its timeouts are long, because a busy machine is no
// outage.
func inRedis(t testing.TB, server *redistest.Server, text string) schema.Config {
	config := parse(t, strings.TrimSpace(text))
	config.Strategy, config.Accuracy = schema.StrategyRedis, schema.AccuracyExact
	config.Redis = schema.Redis{
		Host: server.Host, Port: int64(server.Port), ConnectTimeout: 60_000, SendTimeout: 60_000, ReadTimeout: 60_000,
	}
	return config
}

// acquire decides a request and fails the test on an error.
func acquire(t testing.TB, l *limiter.Limiter, r limiter.Request) limiter.Decision {
	t.Helper()
	d, err := l.TryAcquire(t.Context(), r)
	require.NoError(t, err)
	return d
}
