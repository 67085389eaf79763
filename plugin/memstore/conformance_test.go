package memstore_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/internal/storetest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/memstore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestMemstoreKeepsTheStoresPromises(t *testing.T) {
	storetest.Run(t, func(*testing.T) (storetest.Store, storetest.Clock) {
		clock := storetest.NewClock()
		return memstore.New(memstore.Options{Now: clock.Now}), clock
	})
}
