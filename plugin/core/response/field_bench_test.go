package response_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/response"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// listings are the values of ratelimit_header.
var listings = []string{schema.ListBinding, schema.ListAll}

func TestRenderingAllocatesNothingHoweverManyLimitsAreListed(t *testing.T) {
	for _, more := range []int{0, 2, 18} {
		for _, left := range []int64{98, 0} {
			d := many(t, more, left)
			for _, listing := range listings {
				re, r := renderer(schema.Config{RateLimitHeader: listing}), new(response.Response)
				if got := testing.AllocsPerRun(100, func() { re.Render(d, false, r) }); got != 0 {
					t.Errorf("%s of %d limits, %d left: %g allocations, want 0", listing, len(d.Statuses), left, got)
				}
			}
		}
	}
}

// BenchmarkRateLimitField renders answers to admitted requests by turns with the binding limit alone in RateLimit and
// with all limits. It reports the time of each, and the bytes of the field.
func BenchmarkRateLimitField(b *testing.B) {
	const rounds = 100 // of one listing in a turn
	for _, more := range []int{0, 2, 18} {
		d := many(b, more, 98)
		b.Run(fmt.Sprintf("limits=%d", len(d.Statuses)), func(b *testing.B) {
			var took [2]time.Duration
			var field [2]int
			var r response.Response
			renderers := [2]*response.Renderer{}
			for i, listing := range listings {
				renderers[i] = renderer(schema.Config{RateLimitHeader: listing})
				renderers[i].Render(d, false, &r)
				field[i] = len(r.Get("RateLimit"))
			}
			b.ReportAllocs()
			for b.Loop() {
				for i, re := range renderers {
					started := time.Now()
					for range rounds {
						re.Render(d, false, &r)
					}
					took[i] += time.Since(started)
				}
			}
			for i, listing := range listings {
				b.ReportMetric(float64(took[i].Nanoseconds())/float64(b.N*rounds), listing+"-ns")
				b.ReportMetric(float64(field[i]), listing+"-bytes")
			}
			b.ReportMetric(float64(took[1])/float64(took[0]), "all/binding")
		})
	}
}
