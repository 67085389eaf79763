package policy_test

import (
	"reflect"
	"slices"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/internal/policytest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
)

func TestASnapshotKeepsEveryFieldOfAPolicy(t *testing.T) {
	for _, p := range policytest.Full(t) {
		row := policy.Row{ID: 7, Policy: p}
		snapshot, faults := policy.NewSnapshot(policy.Rows{Policies: []policy.Row{row}}, nil)
		row.Slot = "" // a snapshot has active policies only
		if got := slices.Collect(snapshot.Policies()); len(faults) > 0 || len(got) != 1 || !reflect.DeepEqual(got[0], row) {
			t.Errorf("%+v (%v), want %+v", got, faults, row)
		}
	}
}
