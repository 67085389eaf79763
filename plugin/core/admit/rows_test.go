package admit_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/policytest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// overridden puts an override on tenant acme beside the decider's config.
func overridden(t *testing.T, decider *admit.Decider, o schema.Override) {
	t.Helper()
	o.Tenant = "acme"
	rows := policy.Rows{Version: 1, Overrides: []policy.Override{policytest.Override(1, o)}}
	snapshot, faults := policy.NewSnapshot(rows, nil)
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	decider.Policies.Store(decider.Policies.Load().With(snapshot))
}

func TestABannedTenantIsDeniedWithoutSpendingUntilItsBanEnds(t *testing.T) {
	for name, test := range map[string]struct {
		expires limit.Micros
		denied  bool
		wait    limit.Micros
	}{
		"for good":       {0, true, limit.Never},
		"for a minute":   {now + 60*limit.Second, true, 60 * limit.Second},
		"until just now": {now, false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			decider, buckets, observed := deciderOf(t, config())
			ban := schema.Override{Kind: policy.Ban}
			if test.expires > 0 {
				ban.ExpiresAt = time.UnixMicro(int64(test.expires))
			}
			overridden(t, decider, ban)
			var x admit.Exchange
			require.NoError(t, decider.Admit(context.Background(), &gateway{request: ofTier("paid", "u", "GET", "/")}, &x))
			d := &x.Decision
			if x.Response.Denied != test.denied || d.RetryAfter != test.wait || (d.Reason == decision.Banned) != test.denied ||
				(buckets.takes == 0) != test.denied || len(*observed) != 1 {
				t.Errorf("%d takes, %s", buckets.takes, describe(d))
			}
		})
	}
}

func TestABanInAConfigThatDoesNotEnforceIsOnlyRecorded(t *testing.T) {
	decider, buckets, _ := deciderOf(t, config("%mode%", "shadow"))
	overridden(t, decider, schema.Override{Kind: policy.Ban})
	var x admit.Exchange
	admitted(t, decider, &gateway{request: ofTier("paid", "u", "GET", "/")}, &x)
	if d := &x.Decision; !d.ShadowDenied || d.ShadowReason != decision.Banned || buckets.takes != 1 {
		t.Errorf("%d takes, %s", buckets.takes, describe(d))
	}
}

func TestAnExemptTenantHasNoLimitsAndReadsNone(t *testing.T) {
	decider, buckets, _ := deciderOf(t, config("%user%", "deny"))
	overridden(t, decider, schema.Override{Kind: policy.Exempt})
	var x admit.Exchange
	for range 5 {
		admitted(t, decider, &gateway{request: ofTier("trial", "", "POST", "/records")}, &x)
	}
	if buckets.takes != 0 || len(x.Response.Headers) != 0 {
		t.Errorf("%d takes, client reads %s", buckets.takes, read(&x.Response))
	}
}

func TestTheMetaLimitDeniesATenantAheadOfItsPoliciesAndSparesOthers(t *testing.T) {
	decider, buckets, _ := deciderOf(t, config())
	meta, err := admit.NewMeta(2, "n", newShelf())
	require.NoError(t, err)
	decider.Meta = meta
	var x admit.Exchange
	for range 2 {
		admitted(t, decider, &gateway{request: ofTier("paid", "u", "GET", "/")}, &x)
	}
	require.NoError(t, decider.Admit(context.Background(), &gateway{request: ofTier("paid", "u", "GET", "/")}, &x))
	if d := &x.Decision; d.Reason != decision.MetaLimited || !x.Response.Denied || d.RetryAfter != limit.Second/2 ||
		buckets.takes != 2 {
		t.Errorf("%d takes, %s", buckets.takes, describe(d))
	}
	admitted(t, decider, &gateway{request: anonymous}, &x)
}
