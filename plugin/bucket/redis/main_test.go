package redis

import (
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/leaktest"
)

// Whatever a test opens and releases, no goroutine may outlive it.
func TestMain(m *testing.M) { leaktest.Main(m) }
