package api_test

import (
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/memory"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/redis"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/reservation/named"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

func TestReservationsOfBucketsInThisProcessGetBackWhatWasTooMuch(t *testing.T) {
	t.Parallel()
	buckets := shelf{memory.New(memory.Options{Now: clock})}
	r := &reserving{planned: &planned{}}
	r.world = open(t, func(o *api.Options) {
		o.Decider, o.Buckets = deciderOf(t, chats(), buckets, policy.Rows{}), buckets
		o.Reservations = ledgerOf(named.NewLocal(clock, 0), buckets, func(o *named.Options) { o.Own = true })
	})
	r.wantSettled()
}

func TestReservationsInAClusterAreSettledOnEveryMaster(t *testing.T) {
	t.Parallel()
	nodes := redistest.Cluster(t, 3, 0)
	block := schema.Redis{ConnectTimeout: 5000, SendTimeout: 5000, ReadTimeout: 5000}
	for _, server := range nodes.All() {
		block.ClusterNodes = append(block.ClusterNodes, schema.RedisClusterNode{IP: server.Host, Port: int64(server.Port)})
	}
	store, closeRedis, err := redis.NewRegistry(slog.New(slog.DiscardHandler), nil).Open(block)
	require.NoError(t, err)
	defer closeRedis()
	r := &reserving{planned: &planned{}}
	r.world = open(t, func(o *api.Options) {
		o.Decider, o.Buckets = deciderOf(t, chats(), store, policy.Rows{}), store
		o.Reservations = ledgerOf(redis.NewPair(store, nil, nil).Records("default"), store)
	})
	r.wantSettled()
}

// wantSettled fails unless acme's reservations are settled, once each.
func (r *reserving) wantSettled() {
	r.Helper()
	for range 2 {
		r.reserves(admin, "acme", "less", 1500)
		r.reserves(admin, "acme", "more", 1500)
		if got := r.settles(admin, "less", 420); got.Limits[0].Refunded != 1080 || got.Limits[1].Refunded != 1080 {
			r.Errorf("%+v", got)
		}
		if got := r.settles(admin, "more", 1700); got.Limits[0].Charged != 200 || got.Limits[1].Charged != 200 {
			r.Errorf("%+v", got)
		}
		r.wantUsed("afterwards", 2120, 2120, 2)
	}
}
