package redisstore

import (
	"testing"

	"go.uber.org/goleak"
)

// Whatever a test opens and releases, no goroutine may outlive it.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
