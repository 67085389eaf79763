package policy_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

func TestPricesOfANamespaceAreInTheOrderOfModelAndStart(t *testing.T) {
	price := func(id int64, namespace, model string, prompt schema.Price, starts int64) policy.PriceRow {
		return policy.PriceRow{ID: id, DatedPrice: schema.DatedPrice{
			Namespace: namespace, ModelPrice: schema.ModelPrice{Model: model, Prompt: prompt}, StartsAt: time.Unix(starts, 0),
		}}
	}
	idsOf := func(s *policy.Snapshot, namespace string) (ids []int64) {
		for _, p := range s.Namespace(namespace).Prices {
			ids = append(ids, p.ID)
		}
		return ids
	}
	before, faults := policy.NewSnapshot(policy.Rows{Prices: []policy.PriceRow{
		price(1, "", "b", 1, 5), price(2, "default", "a*", 1, 9), price(3, "", "a*", 1, 7), price(4, "other", "a", 1, 1),
		price(5, "", "c", -1, 1),
	}}, nil)
	assert.Equal(t, []int64{3, 2, 1}, idsOf(before, "default"))
	assert.Equal(t, []int64{4}, idsOf(before, "other"))
	assert.Equal(t, 4, before.Len())
	if len(faults) != 1 || faults[0].Table != "prices" || faults[0].Key != "5" || faults[0].Field != "prompt" {
		t.Errorf("the faults are %v, want that of prompt", faults)
	}
	after, faults := before.Apply(policy.Changes{
		Rows:    policy.Rows{Prices: []policy.PriceRow{price(1, "", "", 2, 5), price(6, "", "a*", 1, 8)}},
		Removed: policy.RowKeys{Prices: []int64{1, 2}},
	})
	assert.Equal(t, []int64{3, 6, 1}, idsOf(after, "default"), "a faulty row keeps its last good value")
	assert.Len(t, faults, 1)
	assert.Equal(t, []int64{3, 2, 1}, idsOf(before, "default"), "a snapshot does not change")
}
