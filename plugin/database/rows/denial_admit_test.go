package rows_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

func TestADenialSaysWhatWouldAdmitTheRequest(t *testing.T) {
	at := time.Date(2026, 11, 22, 13, 0, 0, 1000, time.UTC)
	n := func(value int64) *int64 { return &value }
	for _, c := range []struct {
		denial rows.RecentDenial
		want   []string
	}{
		{
			rows.RecentDenial{
				Reason: "quota", Limit: n(5), RetryAfter: n(3),
				Denier: decision.Denier{PolicyID: n(17), Remaining: n(2), Penalty: n(6)},
			},
			[]string{
				"A retry at 2026-11-22T13:00:04Z", "a cost of at most 2, which was left", "the end of penalty 6",
				"by policy 17 or an override.",
			},
		},
		{
			rows.RecentDenial{Reason: "quota", Limit: n(5), Denier: decision.Denier{Capacity: n(9), Remaining: n(9)}},
			[]string{"A cost of at most 9, which is all that the limit holds", "by the config or an override"},
		},
		{rows.RecentDenial{Reason: "quota", Limit: n(5)}, []string{"without that header no wait helps"}},
		{rows.RecentDenial{Reason: "quota", Shadow: true, RetryAfter: n(9000)}, []string{"will be denied"}},
		{rows.RecentDenial{Reason: "quota", Scope: "global"}, []string{"A retry after Retry-After"}},
		{rows.RecentDenial{Reason: "fair_share"}, []string{"less demand of other tenants"}},
		{
			rows.RecentDenial{Reason: "banned", Denier: decision.Denier{Override: n(9)}},
			[]string{"The end of the ban by override 9, since waiting does not help."},
		},
		{rows.RecentDenial{Reason: "banned", RetryAfter: n(60)}, []string{"A retry at 2026-11-22T13:01:01Z"}},
		{rows.RecentDenial{Reason: "user_missing"}, []string{"user_from"}},
		{rows.RecentDenial{Reason: "store_away"}, []string{"fail_mode"}},
		{rows.RecentDenial{Reason: "others"}, nil},
	} {
		c.denial.At = at
		got := c.denial.WouldAdmit()
		for _, part := range c.want {
			assert.Contains(t, got, part, "%+v", c.denial)
		}
		if len(c.want) == 0 && got != "" {
			t.Errorf("%+v: %q, want nothing", c.denial, got)
		}
	}
}
