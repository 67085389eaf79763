package limiter_test

import (
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limiter"
)

// BenchmarkTryAcquire measures a decision about three limits in this process.
func BenchmarkTryAcquire(b *testing.B) {
	l := limiting(b, parse(b, roomy))
	r := limiter.Request{Org: "acme", User: "u_42", Endpoint: "POST /records/7", IP: "192.0.2.1"}
	b.ReportAllocs()
	for b.Loop() {
		acquire(b, l, r)
	}
}
