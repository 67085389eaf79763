package policysync

import (
	"bytes"
	"reflect"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/policytest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

func TestAFileKeepsTheOpenCandidateInFull(t *testing.T) {
	want := &policy.CandidateSet{Name: "spring", Percent: 5, Tenants: []string{"acme", "zen"}}
	for _, p := range policytest.Full(t) {
		want.Rows = append(want.Rows, policy.CandidateRow{Policy: p})
	}
	want.Rows = append(want.Rows, policy.CandidateRow{
		Policy: schema.Policy{Namespace: "default", Tier: "gold", Limit: schema.Limit{Name: "daily"}}, Deleted: true,
	})
	snapshot, faults := built(t, crowd(1)).WithCandidate(want)
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	whole := encoded(t, snapshot)
	saved, err := decode(bytes.NewReader(whole), snapshot.Len()+len(snapshot.Tiers()))
	if err != nil || !reflect.DeepEqual(saved.Candidate, want) {
		t.Errorf("the file has the candidate %+v (%v), want %+v", saved.Candidate, err, want)
	}
	if got := built(t, saved.Rows); got.Len() != snapshot.Len() {
		t.Errorf("the file has %d rows, want %d", got.Len(), snapshot.Len())
	}
}

func TestARecordOfACandidateOutOfOrderIsDamage(t *testing.T) {
	for _, kind := range []byte{recordCandidateTenant, recordCandidateRow, recordCandidateRow + 1} {
		if (&codec{reading: true, texts: internedTexts{}}).readRecord(kind, &Saved{}) {
			t.Errorf("a record of kind %d is read without a candidate", kind)
		}
	}
	c := codec{reading: true, texts: internedTexts{}}
	if c.readRecord(recordCandidate, &Saved{Candidate: &policy.CandidateSet{}}) {
		t.Error("a second candidate is read")
	}
}
