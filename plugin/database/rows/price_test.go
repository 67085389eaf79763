package rows_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

func priceOf(model string, prompt schema.Price, starts time.Time) rows.Price {
	return rows.Price{DatedPrice: schema.DatedPrice{
		ModelPrice: schema.ModelPrice{Model: model, Prompt: prompt, Completion: 4 * prompt}, StartsAt: starts,
	}}
}

var (
	pastPrice   = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	comingPrice = time.Date(2099, 1, 1, 0, 0, 0, 0, time.UTC)
)

func TestOneOfTheDatedPricesOfAModelIsInForce(t *testing.T) {
	s, _ := open(t)
	put := func(p rows.Price) rows.Price {
		t.Helper()
		written, _, err := s.PutPrice(t.Context(), ann, p)
		require.NoError(t, err)
		return written
	}
	before := put(priceOf("gpt-4o*", 2_500_000, pastPrice))
	put(priceOf("gpt-4o*", 1_000_000, comingPrice))
	other := priceOf("gpt-4o*", 7, pastPrice)
	other.Namespace = "other"
	put(other)
	began := time.Now()
	now := put(priceOf("gpt-4o*", 0, time.Time{})) // free is a price
	assert.WithinDuration(t, began, now.StartsAt, time.Minute)

	again := put(priceOf("gpt-4o*", 0, time.Time{}))
	assert.Equal(t, now, again, "the price in force was put, and there is another row")
	replaced := put(priceOf("gpt-4o*", 3_000_000, pastPrice))
	assert.Equal(t, []any{before.ID, int64(2)}, []any{replaced.ID, replaced.Revision})

	states := map[schema.Price]string{}
	all, err := s.Prices(t.Context(), rows.PriceFilter{})
	require.NoError(t, err)
	for _, p := range all {
		states[p.Prompt] = p.State
	}
	assert.Equal(t, map[schema.Price]string{
		3_000_000: rows.StateEnded, 1_000_000: rows.StateScheduled, 7: rows.StateInForce, 0: rows.StateInForce,
	}, states)
	_, err = rows.Delete[rows.Price](t.Context(), s, ann, now.ID, now.Revision)
	require.NoError(t, err)
	inForce, err := s.Prices(t.Context(), rows.PriceFilter{Namespace: "default", State: rows.StateInForce})
	require.NoError(t, err)
	assert.Equal(t, []schema.Price{3_000_000}, []schema.Price{inForce[0].Prompt}, "after the deletion of the one after it")
}

func TestASetOfPricesIsAppliedInItsNamespaceAlone(t *testing.T) {
	s, _ := open(t)
	other := priceOf("a", 9, pastPrice)
	other.Namespace = "other"
	for _, p := range []rows.Price{priceOf("a", 1, pastPrice), priceOf("b", 2, pastPrice), other} {
		_, _, err := s.PutPrice(t.Context(), ann, p)
		require.NoError(t, err)
	}
	set := rows.Set{KeepPolicies: true, Prices: []rows.Price{priceOf("b", 3, pastPrice), priceOf("b", 2, comingPrice)}}
	done, version, err := s.Apply(t.Context(), ann, set)
	if err != nil || version != 4 || len(done.Prices.Create) != 1 || len(done.Prices.Update) != 1 ||
		len(done.Prices.Delete) != 1 {
		t.Fatalf("applied %+v in version %d (%v)", done.Prices, version, err)
	}
	dumped, err := s.Dump(t.Context(), "default")
	require.NoError(t, err)
	dumped.KeepPolicies = true
	for _, again := range []rows.Set{set, dumped} {
		if d, err := s.Diff(t.Context(), again); err != nil || !d.Empty() || d.Prices.Unchanged != 2 {
			t.Errorf("applied again it would change %+v (%v)", d.Prices, err)
		}
	}
	if all, err := s.Prices(t.Context(), rows.PriceFilter{Namespace: "other"}); err != nil || all[0].Prompt != 9 {
		t.Errorf("the prices of the other namespace are %v (%v)", all, err)
	}
}

func TestAFaultyPriceIsNotWritten(t *testing.T) {
	s, _ := open(t)
	negative, twice := priceOf("a", -1, pastPrice), priceOf("a", 1, pastPrice)
	for name, c := range map[string]struct {
		prices []rows.Price
		fault  string
	}{
		"negative":           {[]rows.Price{negative}, "prompt: must be US dollars"},
		"no model":           {[]rows.Price{priceOf("", 1, pastPrice)}, "model: is required"},
		"a * in the middle":  {[]rows.Price{priceOf("a*b", 1, pastPrice)}, "model: must be the name"},
		"no start":           {[]rows.Price{priceOf("a", 1, time.Time{})}, "starts_at: is required in a document"},
		"one start, twice":   {[]rows.Price{twice, priceOf("a", 2, pastPrice)}, "is given twice"},
		"too much":           {[]rows.Price{priceOf("a", 1_000_000_000_001, pastPrice)}, "prompt: must be US dollars"},
		"completion to much": {[]rows.Price{priceOf("a", 250_000_000_001, pastPrice)}, "completion: must be US dollars"},
	} {
		_, _, err := s.Apply(t.Context(), ann, rows.Set{KeepPolicies: true, Prices: c.prices})
		require.ErrorContains(t, err, c.fault, name)
		if c.prices[0].StartsAt.IsZero() || len(c.prices) > 1 {
			continue
		}
		_, _, err = s.PutPrice(t.Context(), ann, c.prices[0])
		require.ErrorContains(t, err, c.fault, name)
	}
}

func TestANamespaceHasPricesOf256Models(t *testing.T) {
	s, _ := open(t)
	set := rows.Set{KeepPolicies: true, Partial: true}
	for i := range 256 {
		set.Prices = append(set.Prices, priceOf(fmt.Sprint("model-", i), 1, pastPrice))
	}
	_, _, err := s.Apply(t.Context(), ann, set)
	require.NoError(t, err)
	const fault = "model: would be one of more than 256 models with prices in a namespace"
	_, _, err = s.PutPrice(t.Context(), ann, priceOf("more", 1, time.Time{}))
	require.ErrorContains(t, err, fault)
	set.Prices = []rows.Price{priceOf("more", 1, pastPrice)}
	_, _, err = s.Apply(t.Context(), ann, set)
	require.ErrorContains(t, err, fault)
	_, _, err = s.PutPrice(t.Context(), ann, priceOf("model-0", 2, time.Time{}))
	require.NoError(t, err, "a change of one that is there")
	elsewhere := priceOf("more", 1, pastPrice)
	elsewhere.Namespace = "other"
	_, _, err = s.PutPrice(t.Context(), ann, elsewhere)
	require.NoError(t, err)
	set.Partial = false
	_, _, err = s.Apply(t.Context(), ann, set)
	require.NoError(t, err, "in place of all others")
}
