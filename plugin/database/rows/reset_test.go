package rows_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

func TestTheAuditOfAResetHasEachBucketWithItsSubjectAndUse(t *testing.T) {
	s, _ := open(t)
	compiled, err := limit.New(limit.Spec{Algorithm: limit.TokenBucket, Quantity: 100, Window: limit.Second})
	require.NoError(t, err)
	daily := &policy.Policy{Name: "daily", Row: 7, Scope: policy.Tenant, Limit: compiled}
	bounds := []policy.Bound{
		{Policy: daily, Key: policy.Key{Endpoint: "GET /a"}},
		{Policy: daily, Key: policy.Key{Kind: policy.KindUser, Subject: "u_42"}},
		{Policy: daily, Key: policy.Key{Kind: policy.KindCredential, Subject: "key"}},
		{Policy: daily, Key: policy.Key{Kind: policy.KindIP, Subject: "192.0.2.1"}},
	}
	statuses := make([]decision.Status, len(bounds))
	for i := range statuses {
		statuses[i].Used, statuses[i].Remaining, statuses[i].Reset = 3, 97, limit.Second
	}
	reset, err := rows.ResetOf("acme", bounds, statuses)
	if err == nil {
		err = s.Do(t.Context(), ann, reset, nil, done)
	}
	require.NoError(t, err)
	entries, err := s.Audit(t.Context(), rows.AuditFilter{Kind: "action", Key: "buckets", Tenant: "acme"})
	if err != nil || len(entries) != 1 || entries[0].Operation != "reset" {
		t.Fatalf("the audit has %+v (%v), want one reset", entries, err)
	}
	bucket := rows.EmptiedBucket{
		Policy: "daily", Row: 7, Description: "100 per 1 s (token_bucket) per tenant", Used: 3,
		Remaining: 97, Reset: time.Unix(1, 0).UTC(),
	}
	want := []rows.EmptiedBucket{bucket, bucket, bucket, bucket}
	want[0].Endpoint, want[1].User, want[2].Credential, want[3].IP = "GET /a", "u_42", "key", "192.0.2.1"
	var got struct{ Buckets []rows.EmptiedBucket }
	if err := json.Unmarshal(entries[0].After, &got); err != nil || !same(t, got.Buckets, want) {
		t.Errorf("the emptied buckets are %+v (%v), want %+v", got, err, want)
	}
}
