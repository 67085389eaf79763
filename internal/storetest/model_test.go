package storetest_test

import (
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/storetest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/store"
)

func TestTheModelKeepsThePromisesOfAStore(t *testing.T) {
	storetest.Run(t, func(*testing.T) (store.Store, storetest.Clock) {
		clock := storetest.NewClock()
		return storetest.NewModel(clock), clock
	})
}
