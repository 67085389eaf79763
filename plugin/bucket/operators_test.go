package bucket_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/faultproxy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

func TestOperatorsReadAndEmptyBucketsOfARedisThatIsTooSlowForRequests(t *testing.T) {
	for name, harm := range map[string]func(*faultproxy.Proxy){
		"slow":                  func(p *faultproxy.Proxy) { p.Delay(faultproxy.ToClient, 150*time.Millisecond) },
		"one connection breaks": func(p *faultproxy.Proxy) { p.CutReplies(1, faultproxy.Reset) },
	} {
		t.Run(name, func(t *testing.T) {
			proxy, err := faultproxy.New(faultproxy.TCP(redistest.Single(t).Address()))
			require.NoError(t, err)
			t.Cleanup(func() {
				if err := proxy.Close(); err != nil {
					t.Error(err)
				}
			})
			of, _ := serving(t, time.Minute)
			config := inRedis(proxy.Port())
			config.Redis.SendTimeout, config.Redis.ReadTimeout = 50, 50
			operators, release, err := of.OpenOperators(&config)
			require.NoError(t, err)
			t.Cleanup(release)
			harm(proxy)
			if status := peek(t, operators); status.Source != decision.Redis {
				t.Errorf("%+v: want an answer", status)
			}
			harm(proxy)
			if _, err := operators.Forget(t.Context(), []policy.Key{ten(t, 0)[0].Key}); err != nil {
				t.Errorf("empty a bucket: %v", err)
			}
			if stats := of.Stats(); len(stats) != 0 {
				t.Errorf("%+v: want no numbers of a store that no request uses", stats)
			}
		})
	}
}

func TestOperatorsOfConfigsWithoutRedisGetAnError(t *testing.T) {
	of, _ := serving(t, time.Second)
	config := inRedis(1)
	config.Strategy = "local"
	if _, _, err := of.OpenOperators(&config); !errors.Is(err, bucket.ErrNotCentral) {
		t.Errorf("%v: want %v", err, bucket.ErrNotCentral)
	}
}
