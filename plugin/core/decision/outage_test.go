package decision_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

func TestABoundWhoseStoreIsUnavailableTakesItsFailMode(t *testing.T) {
	const second = limit.Second
	admits := decision.Status{Status: limit.Status{Remaining: 5}, Source: decision.Redis}
	full := decision.Status{Wait: 7 * second, Source: decision.Redis}
	localFull := decision.Status{Wait: 3 * second, Source: decision.Local, Failure: decision.Unavailable}
	unavailable := decision.Status{Wait: 2 * second, Failure: decision.Unavailable}
	late := decision.Status{Failure: decision.TimedOut}
	const (
		open, closed, local = policy.FailOpen, policy.FailClosed, policy.FailLocal
		allowed, denied     = decision.Allowed, decision.HardThrottled
	)
	type bound struct {
		mode   policy.Mode
		fail   policy.FailMode
		status decision.Status
	}
	tests := []struct {
		name       string
		bounds     []bound
		result     decision.Result
		reason     decision.Reason
		binding    int
		retryAfter limit.Micros
	}{
		{"open admits", []bound{{0, open, unavailable}}, allowed, decision.Counted, -1, 0},
		{"local without an answer admits", []bound{{0, local, unavailable}}, allowed, decision.Counted, -1, 0},
		{
			"closed denies until the store is expected back",
			[]bound{{0, closed, unavailable}},
			denied, decision.StoreAway, -1, 2 * second,
		},
		{"closed denies when its answer is late", []bound{{0, closed, late}}, denied, decision.StoreAway, -1, 1},
		{
			"the longest of several",
			[]bound{{0, closed, late}, {0, closed, unavailable}, {0, open, unavailable}},
			denied, decision.StoreAway, -1, 2 * second,
		},
		{
			"closed in shadow denies no request",
			[]bound{{policy.Shadow, closed, unavailable}},
			allowed, decision.Counted, -1, 0,
		},
		{
			"an answered one binds beside open",
			[]bound{{0, open, unavailable}, {0, closed, admits}},
			allowed, decision.Counted, 1, 0,
		},
		{
			"closed beside one that admits",
			[]bound{{0, closed, unavailable}, {0, closed, admits}},
			denied, decision.StoreAway, -1, 2 * second,
		},
		{
			"one that has no room goes before closed",
			[]bound{{0, closed, unavailable}, {0, open, full}},
			denied, decision.Counted, 1, 7 * second,
		},
		{
			"and so does a share that is used up",
			[]bound{{0, local, localFull}, {0, closed, unavailable}},
			denied, decision.Counted, 0, 3 * second,
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var d decision.Decision
			d.Reset()
			for _, b := range test.bounds {
				l, err := limit.New(limit.Spec{Algorithm: limit.FixedWindow, Quantity: 10, Window: 60 * second})
				require.NoError(t, err)
				d.Resolution.Bounds = append(d.Resolution.Bounds,
					policy.Bound{Policy: &policy.Policy{Limit: l, Mode: b.mode, FailMode: b.fail}, Cost: 1})
			}
			d.Grow()
			for i, b := range test.bounds {
				d.Statuses[i] = b.status
			}
			d.Combine()
			if d.Result != test.result || d.Reason != test.reason || d.Binding != test.binding ||
				d.RetryAfter != test.retryAfter || !d.Degraded {
				t.Errorf("%s because of %s, binding %d, retry after %d, degraded %v",
					d.Result, d.Reason, d.Binding, d.RetryAfter, d.Degraded)
			}
		})
	}
}

func TestABoundThatWasNotCheckedBesideARememberedDenialDeniesNothing(t *testing.T) {
	closed := policy.Policy{FailMode: policy.FailClosed}
	if decision.Denies(&policy.Bound{Policy: &closed}, &decision.Status{}) {
		t.Error("its store is not unavailable: it was not called")
	}
}
