package memory_test

import (
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/leaktest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/storetest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/memory"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/store"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func TestMemstoreKeepsTheStoresPromises(t *testing.T) {
	storetest.Run(t, func(*testing.T) (store.Store, storetest.Clock) {
		clock := storetest.NewClock()
		return memory.New(memory.Options{Now: clock.Now}), clock
	})
}
