package decision_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

func TestTheOwnBoundIsTheOneThatWouldBindWithoutSharedOnes(t *testing.T) {
	const own, all, endpoint, address = policy.ByTenant, policy.ByAll, policy.ByEndpoint, policy.ByIP
	type bound struct {
		group     policy.Group
		mode      policy.Mode
		remaining int64
		wait      limit.Micros
	}
	unavailable := limit.Micros(-1) // fails closed
	tests := []struct {
		name         string
		bounds       []bound
		binding, own int
		retryAfter   limit.Micros
	}{
		{"none", nil, -1, -1, 0},
		{"shared ones alone", []bound{{all, 0, 5, 0}, {endpoint, 0, 4, 0}}, 1, -1, 0},
		{"a shared one with less left", []bound{{own, 0, 9, 0}, {all, 0, 1, 0}, {own, 0, 8, 0}}, 1, 2, 0},
		{"an address has buckets of its own", []bound{{address, 0, 9, 0}, {all, 0, 1, 0}}, 1, 0, 0},
		{"a shared one that denies", []bound{{own, 0, 9, 0}, {own, 0, 3, 0}, {endpoint, 0, 0, 7}}, 2, 1, 7},
		{"an own one that denies beside it", []bound{{own, 0, 0, 5}, {own, 0, 1, 0}, {all, 0, 0, 7}}, 2, 0, 7},
		{"an own one that waits longer", []bound{{all, 0, 0, 5}, {own, 0, 0, 7}}, 1, 1, 7},
		{"an own one in shadow", []bound{{own, policy.Shadow, 0, 9}, {all, 0, 5, 0}}, 1, -1, 0},
		{"a shared one that is unavailable", []bound{{own, 0, 5, 0}, {all, 0, 0, unavailable}}, -1, -1, 2},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			l, err := limit.New(limit.Spec{Algorithm: limit.FixedWindow, Quantity: 10, Window: 60 * limit.Second})
			require.NoError(t, err)
			var d decision.Decision
			d.Reset()
			for _, b := range test.bounds {
				p := &policy.Policy{Limit: l, Mode: b.mode, FailMode: policy.FailClosed}
				d.Resolution.Bounds = append(d.Resolution.Bounds, policy.Bound{Policy: p, Key: policy.Key{Group: b.group}, Cost: 1})
			}
			d.Grow()
			for i, b := range test.bounds {
				d.Statuses[i] = decision.Status{Status: limit.Status{Remaining: b.remaining}, Wait: b.wait, Source: decision.Redis}
				if b.wait == unavailable {
					d.Statuses[i] = decision.Status{Wait: 2, Failure: decision.Unavailable}
				}
			}
			d.Combine()
			if d.Binding != test.binding || d.OwnBinding != test.own || d.RetryAfter != test.retryAfter {
				t.Errorf("binding %d, own %d, retry after %d, want %d, %d, %d",
					d.Binding, d.OwnBinding, d.RetryAfter, test.binding, test.own, test.retryAfter)
			}
			if d.Reset(); d.OwnBinding != -1 {
				t.Errorf("own is %d after Reset, want none", d.OwnBinding)
			}
		})
	}
}

func TestADecisionAmongSomeBoundsIsTheOneThatTheyWouldMakeAlone(t *testing.T) {
	l, err := limit.New(limit.Spec{Algorithm: limit.FixedWindow, Quantity: 10, Window: 60 * limit.Second})
	require.NoError(t, err)
	decide := func(groups ...policy.Group) *decision.Decision {
		d := new(decision.Decision)
		d.Reset()
		for _, group := range groups {
			p := &policy.Policy{Limit: l, FailMode: policy.FailClosed}
			d.Resolution.Bounds = append(d.Resolution.Bounds, policy.Bound{Policy: p, Key: policy.Key{Group: group}, Cost: 1})
		}
		d.Grow()
		for i, group := range groups {
			switch group {
			case policy.ByTenant:
				d.Statuses[i] = decision.Status{Wait: 5, Source: decision.Redis}
			case policy.ByAll:
				d.Statuses[i] = decision.Status{Wait: limit.Never, Source: decision.Redis}
			case policy.ByIP:
				d.Statuses[i] = decision.Status{Status: limit.Status{Remaining: 5, Soft: true}, Source: decision.Redis}
			default:
				d.Statuses[i] = decision.Status{Wait: 2, Failure: decision.Unavailable}
			}
		}
		d.Combine()
		return d
	}
	all := []policy.Group{policy.ByAll, policy.ByTenant, policy.ByEndpoint, policy.ByIP}
	for _, group := range all {
		got, want := decide(all...).Filter(func(b *policy.Bound) bool { return b.Key.Group == group }), decide(group)
		if got.Result != want.Result || got.Reason != want.Reason || got.Binding != want.Binding ||
			got.OwnBinding != want.OwnBinding ||
			got.RetryAfter != want.RetryAfter || got.Degraded != want.Degraded || len(got.Statuses) != 1 {
			t.Errorf("group %d: %+v, want %+v", group, got, want)
		}
	}
}
