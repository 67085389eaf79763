package policy

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/calendar"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
)

func TestTheItemOfAPeriodIsAppendedWithoutAnAllocation(t *testing.T) {
	year, err := calendar.New(calendar.Year, calendar.Anchor{}, "")
	require.NoError(t, err)
	l, err := limit.New(limit.Spec{Algorithm: limit.FixedWindow, Quantity: 9, Calendar: year})
	require.NoError(t, err)
	p := Policy{Name: "yearly", Limit: l}
	p.Quota = p.quotaItem()
	buffer := make([]byte, 0, p.QuotaLength())
	leap := limit.Micros(1_710_000_000_000_000)
	assert.Equal(t, `"yearly";q=9;w=31622400`, string(p.AppendQuota(buffer, leap)))
	assert.Zero(t, testing.AllocsPerRun(100, func() { buffer = p.AppendQuota(buffer[:0], leap) }))
	assert.Equal(t, p.QuotaLength(), len(buffer))
}
