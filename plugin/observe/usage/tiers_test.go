package usage

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
)

// decidedBy returns a decision by a tier, of a connection.
func decidedBy(t *testing.T, connection uint32, tenant, endpoint, tier, source string) *decision.Decision {
	d := decided(t, tenant, endpoint)
	d.Exchange = connection
	d.Resolution.Namespace, d.Resolution.Tier, d.Resolution.TierSource = "default", tier, source
	return d
}

func TestATierIsReportedOncePerTenantAndChange(t *testing.T) {
	const tag, row = "consumer.tag.tier", "row"
	c := NewCounter()
	now := time.Unix(0, 0)
	cut := func() (got []string) {
		c.cut()
		for _, tier := range c.cutTiers(now) {
			assert.Equal(t, "default", tier.Namespace, "the namespace of %+v is not that of the config", tier)
			got = append(got, fmt.Sprintf("%s %s (%s)", tier.Tenant, tier.Tier, tier.Source))
		}
		return got
	}
	see := func(connection uint32, endpoint, tier, source string) {
		c.Observe(decidedBy(t, connection, "acme", endpoint, tier, source))
	}
	for _, step := range []struct {
		name string
		do   func()
		want []string
	}{
		{"the first request", func() { see(1, "a", "pro", tag) }, []string{"acme pro (consumer.tag.tier)"}},
		{"the same, over other connections and endpoints", func() {
			see(1, "a", "pro", tag)
			see(2, "a", "pro", tag)
			see(1, "b", "pro", tag)
		}, nil},
		{"no request", func() {}, nil},
		{"two consumers, and the second is seen last", func() {
			see(1, "a", "pro", tag)
			see(2, "a", "free", tag)
		}, []string{"acme free (consumer.tag.tier)"}},
		{"the two once more", func() {
			see(1, "a", "pro", tag)
			see(2, "a", "free", tag)
		}, []string{"acme pro (consumer.tag.tier)", "acme free (consumer.tag.tier)"}},
		{"one of them alone", func() { see(2, "a", "free", tag) }, nil},
		{"another source of the same tier", func() { see(2, "a", "free", row) }, []string{"acme free (row)"}},
		{"a tier that comes back is seen last", func() {
			see(1, "a", "pro", tag)
			see(1, "a", "free", row)
			see(1, "a", "pro", tag)
		}, []string{"acme pro (consumer.tag.tier)"}},
		{"five minutes later", func() {
			now = now.Add(repeatTiers)
			see(1, "a", "free", row)
			see(1, "a", "pro", tag)
		}, []string{"acme free (row)", "acme pro (consumer.tag.tier)"}},
		{"a request without a tenant", func() { c.Observe(decidedBy(t, 1, "", "a", "pro", "default")) }, nil},
	} {
		step.do()
		got := cut()
		assert.True(t, slices.Equal(got, step.want), "%s: %v is reported, want %v", step.name, got, step.want)
	}
}

func TestTheTiersThatCallersStateAreNotReported(t *testing.T) {
	c := NewCounter()
	c.Routes = func(string) bool { return true }
	c.Observe(decidedBy(t, 1, "acme", "a", "pro", ""))
	if c.cut(); len(c.cutTiers(time.Unix(0, 0))) > 0 {
		t.Error("a tier that a caller stated is reported as seen")
	}
}

func TestTiersBeyondABatchAreReportedWhenTheyAreSeenAgain(t *testing.T) {
	c := NewCounter()
	reported := map[string]bool{}
	const tenants = MaxTiers + 10
	for range 2 {
		for i := range tenants {
			c.Observe(decidedBy(t, 1, fmt.Sprint("tenant-", i), "a", "pro", "row"))
		}
		c.cut()
		tiers := c.cutTiers(time.Unix(0, 0))
		if len(tiers) > MaxTiers {
			t.Fatalf("%d tiers, more than %d", len(tiers), MaxTiers)
		}
		for _, tier := range tiers {
			reported[tier.Tenant] = true
		}
	}
	assert.Equal(t, tenants, len(reported), "the tiers of of tenants are reported")
}

func TestTheTiersOfAllTenantsBetweenTwoBatchesAreBounded(t *testing.T) {
	c := NewCounter()
	for i := range maxSeen + 100 {
		c.Observe(decidedBy(t, uint32(i), fmt.Sprint("tenant-", i), "a", "pro", "row"))
	}
	held := 0
	for i := range c.stripes {
		held += len(c.stripes[i].tiers)
	}
	assert.EqualValues(t, maxSeen, held, "tiers are held")
	if c.cut(); len(c.cutTiers(time.Unix(0, 0))) != MaxTiers || c.tiers.Load() != 0 {
		t.Error("after the batch the counter is not empty")
	}
}
