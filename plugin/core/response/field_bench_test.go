package response_test

import (
	"testing"

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
