package decision_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// answer is one bound and the answer of the store. Times are in seconds.
type answer struct {
	quantity, window int64
	mode             policy.Mode
	remaining        int64
	soft             bool
	wait             limit.Micros // never, or seconds
}

const never = limit.Never

func combine(t *testing.T, d *decision.Decision, answers []answer) {
	t.Helper()
	d.Reset()
	for _, a := range answers {
		compiled, err := limit.New(
			limit.Spec{Algorithm: limit.FixedWindow, Quantity: a.quantity, Window: limit.Micros(a.window) * limit.Second})
		require.NoError(t, err)
		d.Resolution.Bounds = append(d.Resolution.Bounds,
			policy.Bound{Policy: &policy.Policy{Limit: compiled, Mode: a.mode}, Cost: 1})
	}
	d.Grow()
	for i, a := range answers {
		wait := a.wait
		if wait != never {
			wait *= limit.Second
		}
		d.Statuses[i] = decision.Status{
			Status: limit.Status{Remaining: a.remaining, Soft: a.soft}, Wait: wait, Source: decision.Memory,
		}
	}
	d.Combine()
}

func TestWhatTheAnswersOfAllBoundsMean(t *testing.T) {
	type want struct {
		result       decision.Result
		binding      int
		retryAfter   limit.Micros
		shadowDenied bool
	}
	const (
		enforce = policy.Enforce
		shadow  = policy.Shadow
		log     = policy.Log
	)
	tests := []struct {
		name    string
		answers []answer
		want    want
	}{
		{"no bounds", nil, want{decision.Allowed, -1, 0, false}},
		{"one admits", []answer{{100, 60, enforce, 99, false, 0}}, want{decision.Allowed, 0, 0, false}},
		{
			"the smallest share left binds",
			[]answer{{100, 60, enforce, 20, false, 0}, {1000, 60, enforce, 100, false, 0}, {10, 60, enforce, 5, false, 0}},
			want{decision.Allowed, 1, 0, false},
		},
		{
			"a share, not a number",
			[]answer{{1_000_000, 86400, enforce, 1000, false, 0}, {10, 1, enforce, 9, false, 0}},
			want{decision.Allowed, 0, 0, false},
		},
		{
			"shares of the largest limits are compared exactly",
			[]answer{
				{limit.MaxQuantity, 60, enforce, limit.MaxQuantity - 1, false, 0},
				{limit.MaxQuantity - 1, 60, enforce, limit.MaxQuantity - 2, false, 0},
			},
			want{decision.Allowed, 1, 0, false},
		},
		{
			"a tie goes to the longer window",
			[]answer{{10, 60, enforce, 5, false, 0}, {100, 3600, enforce, 50, false, 0}, {20, 1, enforce, 10, false, 0}},
			want{decision.Allowed, 1, 0, false},
		},
		{
			"a tie of equals goes to the first",
			[]answer{{10, 60, enforce, 5, false, 0}, {10, 60, enforce, 5, false, 0}},
			want{decision.Allowed, 0, 0, false},
		},
		{
			"one denies",
			[]answer{{100, 60, enforce, 0, false, 0}, {10, 60, enforce, 3, false, 7}},
			want{decision.HardThrottled, 1, 7e6, false},
		},
		{
			"the longest wait binds",
			[]answer{{10, 60, enforce, 0, false, 5}, {100, 3600, enforce, 0, false, 900}, {10, 60, enforce, 0, false, 30}},
			want{decision.HardThrottled, 1, 900e6, false},
		},
		{
			"one wait, the longer window binds",
			[]answer{{10, 60, enforce, 0, false, 30}, {100, 3600, enforce, 0, false, 30}, {10, 1, enforce, 0, false, 30}},
			want{decision.HardThrottled, 1, 30e6, false},
		},
		{
			"no wait helps",
			[]answer{{100, 3600, enforce, 0, false, 900}, {10, 60, enforce, 10, false, never}, {10, 60, enforce, 0, false, 30}},
			want{decision.HardThrottled, 1, never, false},
		},
		{
			"denied before others admit",
			[]answer{{10, 60, enforce, 0, false, 5}, {100, 60, enforce, 0, true, 0}},
			want{decision.HardThrottled, 0, 5e6, false},
		},
		{
			"soft",
			[]answer{{10, 60, enforce, 5, false, 0}, {10, 60, enforce, 0, true, 0}, {10, 60, enforce, 3, false, 0}},
			want{decision.SoftThrottled, 1, 0, false},
		},
		{
			"soft and denied",
			[]answer{{10, 60, enforce, 0, true, 0}, {10, 60, enforce, 0, false, 5}},
			want{decision.HardThrottled, 1, 5e6, false},
		},
		{
			"a shadow that admits is not seen",
			[]answer{{10, 60, shadow, 0, true, 0}, {10, 60, enforce, 9, false, 0}},
			want{decision.Allowed, 1, 0, false},
		},
		{
			"a shadow never denies",
			[]answer{{10, 60, shadow, 0, false, 99}, {10, 60, enforce, 9, false, 0}},
			want{decision.Allowed, 1, 0, true},
		},
		{
			"nor makes a wait longer",
			[]answer{{10, 60, log, 0, false, never}, {10, 60, enforce, 0, false, 5}},
			want{decision.HardThrottled, 1, 5e6, true},
		},
		{
			"only shadows, one would deny",
			[]answer{{10, 60, log, 0, false, 99}, {10, 60, shadow, 9, false, 0}},
			want{decision.Allowed, -1, 0, true},
		},
		{
			"only shadows, all admit",
			[]answer{{10, 60, log, 1, true, 0}, {10, 60, shadow, 9, false, 0}},
			want{decision.Allowed, -1, 0, false},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var d decision.Decision
			combine(t, &d, test.answers)
			got := want{d.Result, d.Binding, d.RetryAfter, d.ShadowDenied}
			if got != test.want || d.Reason != decision.Counted || d.Denied() != (test.want.result == decision.HardThrottled) {
				t.Errorf("decision is %+v, want %+v", got, test.want)
			}
		})
	}
}

func TestADenialForAnotherReasonHasNoBounds(t *testing.T) {
	var d decision.Decision
	d.Reset()
	d.Resolution.Bounds = make([]policy.Bound, 2)
	d.Deny(decision.UserMissing)
	if !d.Denied() || d.Reason != decision.UserMissing || d.Binding != -1 || len(d.Resolution.Bounds) != 0 {
		t.Errorf("decision is %+v, want denied for the missing user, without bounds", d)
	}
}

func TestNoResetIsReportedBeforeTheRequestFits(t *testing.T) {
	for _, test := range []struct{ wait, want limit.Micros }{
		{0, 130}, {10, 130}, {40, 140}, {limit.Never, 130}, // a request that never fits: when the limit is whole again
	} {
		s := decision.Status{Status: limit.Status{Reset: 130}, Now: 100, Wait: test.wait}
		assert.Equal(t, test.want, s.ResetAt(), "a wait of %d from 100, with all there at 130", test.wait)
	}
}
