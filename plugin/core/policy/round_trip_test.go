package policy_test

import (
	"reflect"
	"slices"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/policytest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

func TestASnapshotKeepsEveryFieldOfAPolicy(t *testing.T) {
	for _, p := range policytest.Full(t) {
		row := policy.PolicyRow{ID: 7, Policy: p}
		snapshot, faults := policy.NewSnapshot(policy.Rows{Policies: []policy.PolicyRow{row}}, nil)
		if got := slices.Collect(snapshot.Policies()); len(faults) > 0 || len(got) != 1 || !reflect.DeepEqual(got[0], row) {
			t.Errorf("%+v (%v), want %+v", got, faults, row)
		}
	}
}

func TestASnapshotKeepsEveryFieldOfAnOverride(t *testing.T) {
	for _, o := range policytest.FullOverrides(t) {
		row := policy.Override{ID: 7, Override: o}
		snapshot, faults := policy.NewSnapshot(policy.Rows{Overrides: []policy.Override{row}}, nil)
		if got := slices.Collect(snapshot.Overrides()); len(faults) > 0 || len(got) != 1 || got[0] != row {
			t.Errorf("%+v (%v), want %+v", got, faults, row)
		}
	}
}

func TestANodeReportsTheFaultsOfAnOverrideAsItsDeclarationHasThem(t *testing.T) {
	for _, c := range policytest.FaultyOverrides(t, "../../../schema/testdata/faulty_overrides.json") {
		if c.IsAbsent() {
			continue // in a row of Go
		}
		rows := policy.Rows{Overrides: []policy.Override{{ID: 7, Override: c.Row}}}
		snapshot, faults := policy.NewSnapshot(rows, nil)
		if c.Override["ip"] == "10.0.0.0/8" { // nodes apply it
			if len(faults) > 0 || snapshot.Len() != 1 {
				t.Errorf("%v: %v", c.Override, faults)
			}
			continue
		}
		isSame := func(f policy.Fault) bool { return f.Field == c.Field && f.Problem == c.Message }
		if !slices.ContainsFunc(faults, isSame) || snapshot.Len() != 0 {
			t.Errorf("%v: %v, want %s: %s", c.Override, faults, c.Field, c.Message)
		}
	}
}
