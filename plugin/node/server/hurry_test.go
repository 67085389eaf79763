package server

import (
	"runtime"
	"runtime/metrics"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
)

func TestAWorkerIsInAHurryOnlyAtItsStart(t *testing.T) {
	procs := runtime.GOMAXPROCS(0)
	defer runtime.GOMAXPROCS(procs)
	read := func() uint64 {
		sample := []metrics.Sample{{Name: "/gc/gogc:percent"}}
		metrics.Read(sample)
		return sample[0].Value.Uint64()
	}
	usual := read()
	hurry(procs + 1)
	if read() == usual {
		t.Error("garbage is collected as usual at the start")
	}
	runtime.GC()
	await.That(t, "the usual collection, and the setting of threads", func() bool {
		return read() == usual && runtime.GOMAXPROCS(0) == procs+1
	})
}
