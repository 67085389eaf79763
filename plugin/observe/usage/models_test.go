package usage

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/reservation"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/settle"
)

func TestACallCountsOnceByTenantAndModel(t *testing.T) {
	c := NewCounter()
	settled := func(tenant string, call *settle.Call) {
		// Of a request with two limits one settlement has the call; it counts also where no limit changes.
		c.Settled(&policy.Bound{Policy: &daily}, reservation.Settlement{Tenant: tenant, Endpoint: "chat", Call: call})
		c.Settled(&policy.Bound{Policy: &minute}, reservation.Settlement{Tenant: tenant, Endpoint: "chat"})
	}
	settled("acme", &settle.Call{Model: "gpt-4o", Prompt: 1000, Completion: 200, MicroUSD: 4500, Priced: true})
	settled("acme", &settle.Call{Model: "gpt-4o", Prompt: 1, MicroUSD: 3, Priced: true})
	settled("acme", &settle.Call{Model: "a\x00b", Completion: 7})
	settled("", &settle.Call{Prompt: 1 << 62})
	assert.ElementsMatch(t, []ModelCalls{
		{"", "", 1, maxCount, 0, 0}, {"acme", "a\uFFFDb", 1, 0, 7, 0}, {"acme", "gpt-4o", 2, 1001, 200, 4503},
	}, c.models.cut())
	assert.Empty(t, c.models.cut(), "they count again")
	assert.Empty(t, c.cut(), "rows of requests")
}

func TestCallsOfModelsBeyondTheMaximumAreDroppedAndCounted(t *testing.T) {
	c := NewCounter()
	for n := range 2 * (maxModels + 3) {
		c.Settled(&policy.Bound{Policy: &daily}, reservation.Settlement{
			Tenant: fmt.Sprint("org-", n%(maxModels+3)), Call: &settle.Call{Model: "gpt-4o"},
		})
	}
	all := c.models.cut()
	assert.Len(t, all, maxModels)
	assert.EqualValues(t, 2, all[0].Calls)
	assert.EqualValues(t, 6, c.Dropped())
}

func TestFurtherModelsOfATenantCountAsOthers(t *testing.T) {
	c := NewCounter()
	count := func(tenant, model string) {
		s := reservation.Settlement{Tenant: tenant, Call: &settle.Call{Model: model}}
		c.Settled(&policy.Bound{Policy: &daily}, s)
	}
	for n := range maxModels {
		count("hostile", fmt.Sprint("model-", n))
	}
	count("acme", "gpt-4o")
	count("hostile", "model-0")
	all := map[string]int64{}
	for _, calls := range c.models.cut() {
		all[calls.Tenant+" "+calls.Model] = calls.Calls
	}
	assert.Len(t, all, maxModelsOfTenant+2)
	assert.Equal(t, []int64{1, 2, maxModels - maxModelsOfTenant},
		[]int64{all["acme gpt-4o"], all["hostile model-0"], all["hostile (other)"]})
	assert.Zero(t, c.Dropped())
}

func TestARowHasTheUnitOfItsPolicy(t *testing.T) {
	c, usd := NewCounter(), policy.Policy{Name: "month", Scope: policy.Tenant, Unit: "usd"}
	c.Observe(decided(t, "acme", "chat", answered{usd, 20_000, admits(7)}, answered{daily, 1, admits(7)}))
	var units []string
	for _, row := range c.cut() {
		units = append(units, row.Policy+" "+row.Unit)
	}
	assert.Equal(t, []string{" ", "daily// ", "month// usd"}, units)
}
