package control_test

import (
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/memory"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/reservation/named"
)

func TestReservationsOfBucketsInThisProcessGetBackWhatWasTooMuch(t *testing.T) {
	t.Parallel()
	buckets := shelf{memory.New(memory.Options{Now: clock})}
	r := &reserving{planned: &planned{}}
	r.world = open(t, func(o *control.Options) {
		o.Path, o.Buckets = pathOf(t, chats(), buckets, policy.Rows{}), buckets
		o.Reservations = ledgerOf(named.NewLocal(clock, 0), buckets, func(o *named.Options) { o.Own = true })
	})
	for range 2 {
		r.reserves(admin, "acme", "less", 1500)
		r.reserves(admin, "acme", "more", 1500)
		if got := r.settles(admin, "less", 420); got.Limits[0].Refunded != 1080 || got.Limits[1].Refunded != 1080 {
			t.Errorf("%+v", got)
		}
		if got := r.settles(admin, "more", 1700); got.Limits[0].Charged != 200 {
			t.Errorf("%+v", got)
		}
		r.wantUsed("afterwards", 2120, 2120, 2)
	}
}
